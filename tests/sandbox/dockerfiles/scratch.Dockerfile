ARG BASE
FROM $BASE AS tools
FROM scratch
COPY --from=tools /usr/bin/busybox /bin/sh
COPY a.txt /
RUN echo x > /made
WORKDIR /w
COPY a.txt .
ENV X=y
