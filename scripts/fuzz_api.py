"""Attacks a controller's API: with the operator's token by schemathesis, and without a credential.

fuzz_api.py TRADEWIND FOLDER: a controller on loopback with hosts and flows, its files in a
temporary folder. Fails on an answer 5xx, one that its OpenAPI document does not describe, a request
that breaks that document and is taken, and anything but 401 without a credential.
"""

import json
import re
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

SEED = "1"
# Seconds of the attack; an operation takes milliseconds.
SECONDS = "90"
# Rules between fields, as that a flow does not end where it begins, are in no schema.
EXCLUDED_CHECKS = "positive_data_acceptance"
# It sends changes for as long as it is listened to.
EXCLUDED_PATH = "/v1/events"

ROLES = [
    ["--role", "gateway", "--site", "office"],
    ["--role", "gateway", "--site", "plant"],
    ["--role", "relay", "--region", "gcp:europe-north1"],
    ["--role", "probe", "--site", "mine"],
]
FLOWS = [
    ["backup", "--from", "office", "--to", "files.example.com:443", "--per-day", "200GB"],
    ["nightly", "--from", "plant", "--to", "192.0.2.7:443", "--per-day", "1GB"],
]


class Controller:
    """A controller that runs in a folder."""

    def __init__(self, program: str, folder: Path):
        self.program, self.folder = program, folder
        # Agents dial the address in their invites, so the port is known before.
        with socket.create_server(("127.0.0.1", 0)) as free:
            agents = f"127.0.0.1:{free.getsockname()[1]}"
        listeners = ["--agents", agents, "--api", "127.0.0.1:0", "--advertise", agents]
        self.run("controller", "init", "net", *listeners)
        self.log = open(folder / "log", "w+b")
        self.process = subprocess.Popen(
            [program, "controller", "run", "net"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=self.log,
        )
        ready = json.loads(self.process.stdout.readline())
        self.api = f"http://{ready['api']}"
        access = folder / "net" / "admin.toml"
        text = re.sub('^api = .*', f'api = "{self.api}"', access.read_text(), flags=re.MULTILINE)
        access.write_text(text)
        self.token = re.search('^token = "(.*)"', text, flags=re.MULTILINE).group(1)

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [self.program, *words], cwd=self.folder, check=True, capture_output=True, text=True
        )
        return done.stdout

    def status_of(self, method: str, path: str, headers: dict[str, str]) -> int:
        """Returns the status of an answer."""
        body = b"{}" if method in ("post", "put") else None
        request = urllib.request.Request(
            self.api + path, data=body, headers=headers, method=method.upper()
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def document(self) -> dict:
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(self.api + "/v1/openapi.json", headers=headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)


def without_credential(controller: Controller) -> list[str]:
    """Returns the requests without the API's credential whose answer is not 401."""
    document = controller.document()
    operations = [(method, path) for path, item in document["paths"].items() for method in item]
    # The dashboard's own files need none, as they hold nothing of the overlay.
    operations += [("get", "/v1"), ("get", "/metrics"), ("get", "/v1/hosts/.."), ("get", "/none")]
    wrong = [{}, {"Authorization": ""}, {"Authorization": "Bearer"}]
    wrong += [{"Authorization": f"Bearer {controller.token[:-1]}"}]
    wrong += [{"Authorization": f"Basic {controller.token}"}, {"Cookie": controller.token}]
    found = []
    for method, path in operations:
        path = re.sub(r"\{\w+\}", "backup", path)
        for headers in wrong:
            status = controller.status_of(method, path, headers)
            if status != 401:
                found.append(f"{method} {path} with {headers}: {status}")
    print(f"fuzz-api: {len(operations) * len(wrong)} requests without a credential", flush=True)
    return found


def attack(controller: Controller, schemathesis: Path) -> int:
    """Attacks with the operator's token; returns the exit code."""
    words = [
        *[schemathesis, "--no-color", "run", f"{controller.api}/v1/openapi.json"],
        *["--header", f"Authorization: Bearer {controller.token}"],
        *["--exclude-path", EXCLUDED_PATH, "--exclude-checks", EXCLUDED_CHECKS],
        *["--seed", SEED, "--max-time", SECONDS, "--request-timeout", "20"],
        *["--continue-on-failure", "--generation-database", "none", "--warnings", "off"],
    ]
    return subprocess.run(words, cwd=controller.folder).returncode


def main() -> int:
    program, folder = str(Path(sys.argv[1]).resolve()), Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        controller = Controller(program, Path(place))
        try:
            for number, role in enumerate(ROLES):
                invite = controller.run("invite", *role).split()[-1]
                controller.run("agent", "join", invite, "--enrol-only", "--dir", f"host{number}")
            for flow in FLOWS:
                controller.run("flow", "add", *flow)
            controller.run("budget", "6")
            found = without_credential(controller)
            for line in found:
                print(f"fuzz-api: not 401: {line}")
            code = attack(controller, folder / "venv" / "bin" / "schemathesis")
            lives = controller.process.poll() is None
            controller.log.seek(0)
            log = controller.log.read().decode(errors="replace")
            if not lives or "panicked" in log:
                print(f"fuzz-api: the controller ended, or a thread of it did:\n{log}")
            return int(code != 0 or bool(found) or not lives or "panicked" in log)
        finally:
            controller.process.terminate()
            controller.process.wait()


if __name__ == "__main__":
    sys.exit(main())
