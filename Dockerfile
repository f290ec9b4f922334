# The labelling page in a container: docs/labelling.md, "In a container". compose.yaml starts it.
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE CHANGELOG.md CITATION.cff constraints.txt ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
# The CPU build of torch: a fifth of the size of the one with CUDA.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c /wheels/constraints.txt \
        "$(echo /wheels/labelahead-*.whl)[all]" \
    && useradd --uid 10001 --create-home labeller \
    && mkdir /labels \
    && chown labeller /labels
USER 10001
WORKDIR /labels
VOLUME /labels
EXPOSE 8765
# Without its token the page says 401, which is as good a sign of life as any.
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8765, timeout=5); c.request('GET', '/'); assert c.getresponse().status < 500"]
ENTRYPOINT ["labelahead"]
CMD ["label", "/data", "--out", "/labels/page", "--host", "0.0.0.0", "--no-browser"]
