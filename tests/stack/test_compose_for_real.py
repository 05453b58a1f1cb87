"""The compose engine on a real Docker, with images built from the distribution's programs instead of pulled ones.

They bear the images' names, so that everything else is as shipped: users, mounts, read-only roots, loopback, secrets.
Grafana is in no distribution; in its place stands a web server that answers only if it can read what Grafana must.
"""

import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucommons.stack.check import StackError
from gpucommons.stack.compose import ComposeEngine
from gpucommons.stack.compose_file import ALERTMANAGER_IMAGE, GRAFANA_IMAGE, PROMETHEUS_IMAGE
from gpucommons.stack.health import HttpResponse, get
from needs import needs_program
from stack.stacks import settings_on_free_ports, stack_in
from stack.test_check import BROKEN, GOOD
from testbeds.dockerd import Dockerd, running_dockerd
from waiting import until

pytestmark = pytest.mark.long

_GRAFANA = """#!/bin/sh
set -e
cat "$GF_SECURITY_ADMIN_PASSWORD__FILE" "$GF_PATHS_PROVISIONING"/datasources/*.yml > /dev/null
ls "$GF_PATHS_PROVISIONING"/json/ds01_overview.json > /dev/null
touch "$GF_PATHS_DATA/grafana.db"
mkdir -p /tmp/www/api
echo '{"database": "ok"}' > /tmp/www/api/health
trap 'exit 0' TERM
httpd -f -p "$GF_SERVER_HTTP_ADDR:$GF_SERVER_HTTP_PORT" -h /tmp/www &
wait
"""


# Debian's Alertmanager reads its message templates from files.
_TEMPLATES = {path.lstrip("/"): path for path in ("/usr/share/prometheus/alertmanager",) if Path(path).exists()}


def image(daemon: Dockerd, name: str, program: str, files: dict[str, str]) -> None:
    """An image whose entry point is `program`; `files` maps paths in the image to paths of this machine."""
    archive = daemon.home / "image.tar"
    with tarfile.open(archive, "w", dereference=True) as tar:
        for place, source in files.items():
            tar.add(os.path.realpath(source), place)
        for directory in ("tmp", "etc"):
            made = tarfile.TarInfo(directory)
            made.type, made.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(made)
    daemon.docker("import", "--change", f'ENTRYPOINT ["{program}"]', str(archive), name)


def libraries_of(program: str) -> dict[str, str]:
    shown = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    paths = [word for word in shown.split() if word.startswith("/")]
    return {path.lstrip("/"): path for path in paths}


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dockerd]:
    needs_program("prometheus", "prometheus-alertmanager", "promtool", "amtool", "docker-compose", "ldd")
    with running_dockerd() as daemon:
        for name, found in (
            (PROMETHEUS_IMAGE, shutil.which("prometheus")),
            (ALERTMANAGER_IMAGE, shutil.which("prometheus-alertmanager")),
        ):
            assert found is not None
            image(daemon, name, "/bin/program", {"bin/program": found, **libraries_of(found), **_TEMPLATES})
        script = tmp_path_factory.mktemp("grafana") / "grafana"
        script.write_text(_GRAFANA)
        script.chmod(0o755)
        busybox = shutil.which("busybox")
        assert busybox is not None
        applets = {f"bin/{applet}": busybox for applet in ("sh", "cat", "ls", "touch", "mkdir", "httpd")}
        image(daemon, GRAFANA_IMAGE, "/bin/grafana", {"bin/grafana": str(script), **applets})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", f"unix://{daemon.socket}")
            patch.delenv("GRAFANA_ADMIN_PASSWORD", raising=False)
            yield daemon


def test_start_reload_and_stop(docker: Dockerd, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    site = tmp_path / "site"
    site.mkdir()
    site.chmod(0o755)
    settings = settings_on_free_ports(
        engine="compose",
        rules_dir=str(site),
        smtp_smarthost="127.0.0.1:25",
        smtp_from="a@example.org",
        smtp_username="a",
        smtp_password_file=str(secret),
        email_to="b@example.org",
    )
    said: list[str] = []
    root = tmp_path / "data"
    engine = ComposeEngine(stack_in(root, settings, said))
    engine.start()
    try:
        ids = docker.docker("ps", "--quiet", "--no-trunc").split()
        assert len(ids) == 3

        def well(*services: str) -> bool:
            healths = {health.service: health.ok for health in engine.status()}
            return all(healths[service] for service in services)

        until(lambda: well("prometheus", "alertmanager", "grafana"), "the three services are ready")
        for id in ids:
            pid = docker.docker("inspect", "--format={{.State.Pid}}", id)
            status = Path(f"/proc/{pid}/status").read_text()
            assert "\nUid:\t65534\t" in status, "a stack started by root does not run as root"
            assert "\nCapEff:\t0000000000000000\n" in status
        password = root / "secrets" / "grafana_admin_password"
        assert stat.S_IMODE(password.stat().st_mode) == 0o600
        assert (root / "grafana" / "grafana.db").exists(), "data of a service is outside of its container"

        engine.start()
        assert docker.docker("ps", "--quiet", "--no-trunc").split() == ids, "a second start has no effect"

        (site / "mine.yml").write_text(BROKEN["a key that does not exist"][0])
        with pytest.raises(StackError, match=r"mine\.yml:6"):
            engine.reload()
        (site / "mine.yml").write_text(GOOD.replace("alert: A", "alert: Mine"))
        engine.reload()
        until(lambda: b'"Mine"' in body(f"http://{settings.prometheus_listen}/api/v1/rules"), "the new rule is loaded")
    finally:
        engine.stop()
    assert docker.docker("ps", "--all", "--quiet") == ""
    assert list((root / "prometheus" / "wal").iterdir()), "the data is kept"


def body(url: str) -> bytes:
    answer = get(url)
    return answer.body if isinstance(answer, HttpResponse) else b""
