ARG BASE
FROM $BASE AS build
RUN mkdir -p /out/sub && echo 1 > /out/1.whl && echo 2 > /out/2.whl && ln -s 1.whl /out/l
RUN chown -h app:staff /out/* && chown 0:0 /out/sub && chmod 640 /out/2.whl && ln /out/1.whl /out/sub/hard && ln -s /out/2.whl /to2
FROM $BASE AS unused
RUN exit 1
FROM build AS third
RUN touch /third
FROM $BASE
COPY --from=build /out /kept
COPY --from=0 /out/*.whl /globbed/
COPY --from=third third /3
COPY --from=build /to2 /followed
COPY --from=build --chown=9:9 /out/sub /re/
COPY --from=build /out/1.whl ./
