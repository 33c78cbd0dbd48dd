ARG BASE
FROM $BASE AS a
RUN touch /a
FROM a AS b
RUN touch /b
FROM b
RUN exit 1
