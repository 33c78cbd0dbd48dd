ARG BASE
FROM $BASE
COPY --chown=app dir /1/
COPY --chown=app:staff a.txt /2/new/
COPY --chown=12:34 a.txt /3
COPY --chown=56 a.txt /4
COPY --chmod=751 a.txt b.txt /5/
COPY --chown=app --chmod=0640 a.txt /6
