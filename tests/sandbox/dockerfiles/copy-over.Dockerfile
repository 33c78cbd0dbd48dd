ARG BASE
FROM $BASE
RUN mkdir -p /t/deep && echo old > /t/x && chmod 700 /t /t/deep && ln -s x /t/link
RUN echo own > /t/own && chown 500 /t/own
COPY dir /t
COPY a.txt /t/own
COPY a.txt /t/link
COPY run.sh /bin/
COPY run.sh /bin/run2
