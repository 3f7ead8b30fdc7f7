"""What is refused before any route sees it, each beside a request that differs in that one thing and is served."""

import http.client
import json
from contextlib import closing
from pathlib import Path

import pytest

from agent_os.abi.doors import Tokens
from agent_os.gateway.guard import too_deep
from agent_os.gateway.settings import Settings, require_safe
from cli.desk import until
from gateway.house import API, House

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("HTTP answers are the same for every user")]


def raw(house: House, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """As it stands: no client puts anything right."""
    host, _, port = house.host.partition(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=60)) as connection:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        with connection.getresponse() as answer:
            return answer.status, answer.read()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "evil.example:7700", "127.0.0.1.evil.example:80", ""])
def test_another_name_is_refused(house: House, host: str) -> None:
    token = {"Authorization": f"Bearer {house.tokens['operator']}"}
    assert raw(house, "GET", f"{API}/status", {"Host": house.host, **token})[0] == 200
    status, body = raw(house, "GET", f"{API}/status", {"Host": host, **token})
    assert (status, json.loads(body)["detail_code"]) == (421, "host")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost"])
def test_a_foreign_page_is_refused(house: House, origin: str) -> None:
    assert house.get("status", headers={"Origin": house.url}).status_code == 200
    said = house.get("status", headers={"Origin": origin})
    assert (said.status_code, said.json()["detail_code"]) == (403, "origin")
    assert not [name for name in said.headers if name.startswith("access-control")]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_picture_on_a_foreign_page_asks_nothing(house: House, site: str) -> None:
    """Without an Origin, as a browser sends it for a picture or a script; but a link to the dashboard is one."""
    for good in ("same-origin", "none"):
        assert house.get("status", headers={"Sec-Fetch-Site": good}).status_code == 200
    said = house.get("status", headers={"Sec-Fetch-Site": site})
    assert (said.status_code, said.json()["detail_code"]) == (403, "origin")
    assert house.get("/", headers={"Sec-Fetch-Site": site}).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_form_could_send_changes_nothing(house: House, kind: str) -> None:
    body = b'{"signal": "SIGCONT"}'
    good = house.call("POST", "signals", content=body, headers={"Content-Type": "application/json; charset=utf-8"})
    assert good.status_code == 200, good.text
    said = house.call("POST", "signals", content=body, headers={"Content-Type": kind})
    assert (said.status_code, said.json()["detail_code"]) == (415, "content.type")


def test_without_a_token_nobody_reaches_the_kernel(house: House) -> None:
    before = house.status()["entries"]
    for headers in ({}, {"Authorization": "Bearer"}, {"Authorization": "Basic YTpi"}, {"Authorization": "Bearer x"}):
        said = house.get("status", role=None, headers=headers)
        assert (said.status_code, said.headers["www-authenticate"]) == (401, "Bearer")
    assert house.status()["entries"] <= before + 2, "the kernel was asked"


def test_an_unknown_an_expired_and_a_removed_token_are_refused(house: House) -> None:
    assert house.get("status", role=None, headers=bearer("aos_" + "x" * 43)).status_code == 401
    short = house.token("short", "viewer", ttl_s=1.5)
    assert house.get("status", role=None, headers=bearer(short)).status_code == 200
    until(lambda: house.get("status", role=None, headers=bearer(short)).status_code == 401)
    removed = house.token("removed", "viewer")
    assert house.get("status", role=None, headers=bearer(removed)).status_code == 200
    house.ask(Tokens(do="remove", name="removed"))
    assert house.get("status", role=None, headers=bearer(removed)).status_code == 401


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_token_is_never_taken_from_an_address_and_never_logged(house: House) -> None:
    token = house.tokens["operator"]
    said = house.get(f"{API}/status", role=None, params={"token": token})
    assert (said.status_code, said.json()["detail_code"]) == (400, "token.query")
    house.get("agents/nobody")
    assert token not in house.log()
    assert token not in said.text


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../index.html",
        "/assets/..%2f..%2fapp.py",
        "/assets/%2e%2e/%2e%2e/settings.py",
        "//etc/passwd",
        "/api/v1//status",
        "/api/v1/status/",
        "/API/v1/status",
        "/api/v1/agents/..%2f..%2fstatus",
        "/api/v1/../v1/status",
    ],
)
def test_no_trick_of_a_path_leads_anywhere(house: House, path: str) -> None:
    token = {"Host": house.host, **bearer(house.tokens["operator"])}
    status, body = raw(house, "GET", path, token)
    assert status in (404, 422), body
    assert json.loads(body)["code"] in ("ENOENT", "ETYPE")


def test_bodies_headers_and_nesting_have_limits(house: House) -> None:
    large = house.post("signals", {"signal": "SIGCONT", "reason": "x" * (1 << 20)})
    assert (large.status_code, large.json()["code"]) == (413, "EMSGSIZE")
    deep = house.call("POST", "messages", content=b'{"to":"x","payload":' + b"[" * 65 + b"]" * 65 + b"}")
    assert (deep.status_code, deep.json()["detail_code"]) == (400, "json.depth")
    long = house.get("status", headers={"X-Long": "x" * (33 << 10)})
    assert (long.status_code, long.json()["detail_code"]) == (431, "headers.size")
    assert house.call("POST", "signals", content=b"{nonsense").json()["detail_code"] == "json"
    half = house.call("POST", "messages", content=b'{"to":"x","payload":"\\ud800"}')
    assert (half.status_code, half.json()["detail_code"]) == (400, "text.surrogate")
    wide = house.call("POST", "messages", content=b'{"to":"x","payload":' + b"9" * 40 + b"}")
    assert wide.status_code == 400


def test_every_answer_keeps_a_browser_from_being_clever(house: House) -> None:
    for said in (house.get("/", role=None), house.get("status"), house.get("nothing"), house.get("status", role=None)):
        assert "frame-ancestors 'none'" in said.headers["content-security-policy"]
        assert said.headers["content-security-policy"].startswith("default-src 'self'")
        assert said.headers["x-frame-options"] == "DENY"
        assert said.headers["x-content-type-options"] == "nosniff"
        assert said.headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in said.headers
    assert house.get("status").headers["cache-control"] == "no-store"


def test_a_token_has_a_rate(tmp_path: Path) -> None:
    house = House(tmp_path, limits={"rate": 0.01, "burst": 5})
    try:
        said = [house.get("status", role="viewer") for _ in range(8)]
        assert [one.status_code for one in said[:5]] == [200] * 5
        late = next(one for one in said if one.status_code == 429)
        assert int(late.headers["retry-after"]) >= 1
        assert late.json()["code"] == "EAGAIN"
        assert house.get("status", role="operator").status_code == 200, "another token has a rate of its own"
    finally:
        house.close()


def test_depth_is_told_without_building_anything() -> None:
    assert not too_deep(b"[" * 64 + b"]" * 64, 64)
    assert too_deep(b"[" * 65, 64)
    assert not too_deep(b'"' + b"[" * 1000 + b'\\""', 64)
    assert not too_deep(b"[],{}," * 1000, 64)
    assert not too_deep(b'["\\\\",' + b"[" * 63 + b"]" * 64, 64)
    assert too_deep(b'["\\\\",' + b"[" * 64 + b"]" * 65, 64)
    assert too_deep(b"[{}," * 65 + b"1" + b"]" * 65, 64)


def test_another_address_needs_tls_and_a_name(tmp_path: Path) -> None:
    require_safe("127.0.0.1", (), None, None)
    require_safe("::1", (), None, None)
    for host, names, cert, key in (
        ("192.0.2.1", (), None, None),
        ("0.0.0.0", (), "c", "k"),
        ("127.0.0.1", (), "c", None),
    ):
        with pytest.raises(Exception, match=r"TLS|every address"):
            require_safe(host, names, cert, key)
    assert Settings(tmp_path, port=7700).hosts == ("127.0.0.1:7700", "localhost:7700")
    public = Settings(tmp_path, host="0.0.0.0", port=443, names=("os.example",), cert=tmp_path, key=tmp_path)
    assert public.hosts == ("os.example:443", "os.example")
    assert public.origins[1] == "https://os.example"
