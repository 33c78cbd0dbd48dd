ARG BASE
FROM $BASE AS one
CMD ["base"]
FROM one
SHELL ["/bin/sh", "-ec"]
RUN false || echo "$0" > /s
SHELL ["/bin/sh", "-c"]
CMD echo hi
ENTRYPOINT exec sh
