ARG BASE
FROM $BASE
COPY a.txt /plain
COPY a.txt b.txt /both/
COPY a.txt /new/dir/
COPY a.txt /tmp
COPY dir /copied
COPY dir /tmp/
COPY *.txt /globbed/
COPY ["with space", "/sp ace/"]
COPY . /all
COPY empty /empty
COPY ./dir/../run.sh /deep/er/name
COPY dir/ b.txt /mixed/
COPY d?r/[w-y] /one/
COPY run.sh ../../up.sh
