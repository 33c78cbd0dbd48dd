# escape=`
ARG BASE
FROM $BASE
RUN echo one `
  # a comment, and an empty line

 two > /f && `
  echo 'a\b' >> /f
run echo "it's" > /g
EXPOSE 80
STOPSIGNAL 9
