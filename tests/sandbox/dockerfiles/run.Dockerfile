ARG BASE
FROM $BASE
RUN mkdir -p /d/e && echo hi > /d/f && ln -s f /d/l && ln /d/f /d/h && chmod 600 /d/f
RUN ["sh", "-c", "umask; echo $0 > /args", "zero"]
RUN rm -r /var/lib /usr/bin/zcat && mv /home/app /home/x
RUN chown -R 500:staff /d && touch '/odd name' && mkdir -m 1770 /sticky
RUN cd /d; pwd > where
