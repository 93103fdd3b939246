"""Environment variables of Mainstay that are not settings of the service.

The service refuses any other ``MAINSTAY_`` variable that is not a setting, so that a typo never goes unnoticed. A test
compares this table with every name in the repository.
"""

from __future__ import annotations

from typing import Final

OTHER_VARIABLES: Final = {
    "MAINSTAY_CONFIG": "names the settings file of the service",
    # options of commands, each of which reads its own
    "MAINSTAY_BATCH": "mainstay node: samples per frame",
    "MAINSTAY_COHORT": "mainstay node: cohort of the node",
    "MAINSTAY_INTERVAL": "mainstay node: seconds between samples",
    "MAINSTAY_JOIN_TOKEN": "mainstay node: one-time token for enrollment",
    "MAINSTAY_KERNEL_LOG": "mainstay node: where the kernel log is read",
    "MAINSTAY_NODE_DATA": "mainstay node: directory of spool and credential",
    "MAINSTAY_POWER_DOMAIN": "mainstay node: power domain of the node",
    "MAINSTAY_RACK": "mainstay node: rack of the node",
    "MAINSTAY_RELAY": "mainstay node: URL of the relay of its rack",
    "MAINSTAY_RELAY_DATA": "mainstay relay: directory of the spool",
    "MAINSTAY_RELAY_GATHER": "mainstay relay: seconds to gather frames for a bundle",
    "MAINSTAY_RELAY_HOST": "mainstay relay: address to listen on",
    "MAINSTAY_RELAY_INSECURE_LISTEN": "mainstay relay: listen beyond loopback without TLS",
    "MAINSTAY_RELAY_NAME": "mainstay relay: name of the relay",
    "MAINSTAY_RELAY_PORT": "mainstay relay: TCP port to listen on",
    "MAINSTAY_RELAY_SPOOL_BYTES": "mainstay relay: size of the spool",
    "MAINSTAY_RELAY_TLS_CERTIFICATE": "mainstay relay: PEM file of its certificate",
    "MAINSTAY_RELAY_TLS_KEY": "mainstay relay: PEM file of its private key",
    "MAINSTAY_SWITCHES": "mainstay node: network switches above the node",
    "MAINSTAY_CA_FILE": "clients of the service: PEM file of the authorities to trust",
    "MAINSTAY_CLIENT_CERTIFICATE": "clients of the service: PEM file of their own certificate",
    "MAINSTAY_CLIENT_KEY": "clients of the service: PEM file of its private key",
    "MAINSTAY_SERVICE": "clients of the service: its URL",
    "MAINSTAY_TOKEN": "clients of the service: access token",
    "MAINSTAY_TOKEN_FILE": "clients of the service: file with the access token",
    # launcher, snapshot agent and training processes
    "MAINSTAY_DP": "set by the launcher for a rank: data-parallel size",
    "MAINSTAY_PP": "set by the launcher for a rank: pipeline size",
    "MAINSTAY_TP": "set by the launcher for a rank: tensor-parallel size",
    "MAINSTAY_STAGES": "set by the launcher for a rank: pipeline stages of each replica",
    "MAINSTAY_RUN": "set by the launcher for a rank: run ID",
    "MAINSTAY_JOB": "job ID, for ranks and standalone agents",
    "MAINSTAY_NODE": "node name, for node daemon, ranks and standalone agents",
    "MAINSTAY_JOB_TOKEN": "token that the launchers of one job share",
    "MAINSTAY_LAUNCHER_SOCKET": "set by the launcher for a worker: socket to connect to",
    "MAINSTAY_LAUNCHER_TOKEN": "set by the launcher for a worker: token for that socket",
    "MAINSTAY_SERVICE_TOKEN_FILE": "a job of another launcher: file with the token that reports it to MAINSTAY_SERVICE",
    "MAINSTAY_RESUME": "0: an adapter ignores the snapshots that agents hold",
    "MAINSTAY_SHM_DIR": "directory of snapshot memory instead of /dev/shm",
    "MAINSTAY_EXAMPLE_FAULTS": "faults that the example scripts inject into themselves",
    # deployment, dashboard development, tests and benches
    "MAINSTAY_DB_PASSWORD": "docker-compose.yml: password of PostgreSQL",
    "MAINSTAY_RELAY_TOKEN": "docker-compose.yml: token of the relay",
    "MAINSTAY_API": "dashboard development server: URL of the service",
    "MAINSTAY_FAKE_NVML": "tests: state file of the fake NVML library",
    "MAINSTAY_TEST_CHROMIUM": "tests: path of Chromium",
    "MAINSTAY_TEST_DATA": "tests and benches: directory of reference data",
    "MAINSTAY_TEST_POSTGRES_URL": "tests: PostgreSQL server to use",
    "MAINSTAY_TEST_REDIS_URL": "tests: Redis server to use",
    "MAINSTAY_TEST_RUN_DIR": "tests: directory that the processes of one test run share",
    "MAINSTAY_BENCH_FAULT": "benches: file that names the fault to inject",
    "MAINSTAY_BENCH_GPUS": "benches: GPUs of the simulated fleet",
    "MAINSTAY_BENCH_HOURS": "benches: hours of the simulated fleet",
}
"""Each name with what it is for."""
