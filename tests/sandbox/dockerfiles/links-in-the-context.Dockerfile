ARG BASE
FROM $BASE
COPY to-a /1
COPY to-dir /2
COPY to-dir/x /3
COPY to-a /4/
