ARG BASE
FROM $BASE
ADD t.tar /1/
ADD t.tar.gz /2
ADD t.bz2 /3/
ADD t.xz a.txt /4/
ADD plain.gz /5/
COPY t.tar /6/
ADD a.txt /7/
