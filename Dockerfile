# A training image: Python, TensorFlow and podlift's runtime half. User code is not in it: it comes as a bundle at run time.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim
ARG TENSORFLOW=2.21.*
COPY pyproject.toml README.md LICENSE /src/
COPY sdk /src/sdk
RUN pip install --no-cache-dir "tensorflow==${TENSORFLOW}" google-cloud-storage && pip install --no-cache-dir --no-deps /src && rm -r /src
