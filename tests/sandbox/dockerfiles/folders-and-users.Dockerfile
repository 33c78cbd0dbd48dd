ARG BASE
FROM $BASE
WORKDIR /one
WORKDIR two
RUN pwd > where
WORKDIR ../three/
COPY a.txt .
RUN echo "me:x:77:88::/home/me:/bin/sh" >> /etc/passwd
USER me
RUN id -u > /tmp/id; id -g >> /tmp/id; echo $HOME >> /tmp/id
USER app:staff
RUN id -g > /tmp/g; umask > /tmp/u
USER 500
RUN id -u > /tmp/number; id -g >> /tmp/number
COPY b.txt .
