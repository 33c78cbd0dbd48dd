ARG BASE
ARG GLOBAL=g
ARG OVER=default
FROM $BASE
ARG GLOBAL
ARG OVER
ARG LOCAL=l$GLOBAL
ARG NOTHING
ENV A=1 B="two words" C=$LOCAL D=${OVER:-no} E=${NOTHING:-none} F=${A:+set} G=a\ b H='$A'
ENV OLD form  with spaces
ENV A=2 I=$A
ENV PATH=/x:$PATH LOCAL=env
RUN echo $A:$B:$C:$D:$E:$F:$G:$H:$I:$OLD:$OVER:$LOCAL:$PATH > /out
WORKDIR /w/$A/${OVER}
COPY a.txt $A/
USER ${NOUSER:-app}
LABEL x=1
