ARG BASE
FROM $BASE
RUN mkdir /o && touch /o/1 /o/2 && mkdir /o/sub && touch /o/sub/3
RUN rm -rf /o && mkdir /o && touch /o/4
RUN rm /o/4 && mkdir /o/sub && ln -s sub /o/4
RUN rmdir /o/sub
