"""Every mistake in the configuration of a mesh, found before anything is started."""

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from specmesh.command.demo_assets import demo_mesh
from specmesh.command.mesh_check import check_mesh, mesh_given, tree_of
from specmesh.command.mesh_config import DEFAULT_PORT, POOL_NAME, flags
from specmesh.router.config import RouterConfig
from specmesh.runtime.config import ConfigError, load_config


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "target.npz"
    path.touch()
    return f"table:{path}"


def faults(
    tmp_path: Path,
    text: str,
    environ: Mapping[str, str] | None = None,
    port: int | None = None,
    dtype: str | None = None,
) -> list[str]:
    """What is said of a file, which is called `mesh.toml` in it."""
    path = tmp_path / "mesh.toml"
    path.write_text(text)
    try:
        check_mesh(mesh_given(path, port, dtype, environ or {}), environ or {})
    except ConfigError as error:
        return sorted(fault.replace(str(path), "mesh.toml") for fault in error.faults)
    return []


def test_the_demos_mesh_has_none() -> None:
    check_mesh(mesh_given(None, None, "float32", {}), {})
    assert tree_of(demo_mesh())["verifier"] == {"model": "demo"}


def test_all_sections_are_looked_at_and_every_mistake_is_said_with_its_field_and_origin(
    tmp_path: Path, target: str
) -> None:
    text = f"""
        [verifier]
        model = "{target}"
        kv_memory = "much"
        nobody = 1
        [[drafts]]
        pool = "a"
        kind = "lookup"
        drafter = {{ min_match = 99 }}
        [[drafts]]
        pool = "b"
        kind = "eagle"
        server = {{ port = 70000 }}
        [[drafts]]
        pool = "c"
        kind = "table"
        drafter = {{ path = "absent.npz" }}
        [router]
        policy = {{ name = "greedy", settings = {{ fixed_length = -1 }} }}
        limits = {{ max_session = 3 }}
        """
    environ = {"SPECMESH_ROUTER__SESSIONS__HOLD_OUT": "2", "SPECMESH_VERIFIER__ENGINE__MAX_SESSIONS": "x", "OTHER": "1"}
    said = faults(tmp_path, text, environ)
    assert said == [
        "drafts.0.drafter.min_match: Input should be less than or equal to 8 (from mesh.toml)",
        "drafts.1.kind: unknown kind of draft, must be one of hf, lookup, table (from mesh.toml)",
        "drafts.1.server.port: Input should be less than or equal to 65535 (from mesh.toml)",
        "drafts.2.drafter.path: absent.npz: no such file (from mesh.toml)",
        'router.limits.max_session: no such key (from mesh.toml)',
        'router.policy.name: there is no policy "greedy": fixed, goodput, thompson, ucb1 (from mesh.toml)',
        "router.policy.settings.fixed_length: Input should be greater than or equal to 0 (from mesh.toml)",
        "router.sessions.hold_out: Input should be less than or equal to 1 (from SPECMESH_ROUTER__SESSIONS__HOLD_OUT)",
        "verifier.engine.max_sessions: Input should be a valid integer, unable to parse string as an integer "
        "(from SPECMESH_VERIFIER__ENGINE__MAX_SESSIONS)",
        "verifier.kv_memory: could not parse value and unit from byte string (from mesh.toml)",
        "verifier.nobody: no such key (from mesh.toml)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[rooter]\n", ["rooter: no such key (from mesh.toml)"]),
        ('router = "x"', ["router: must be a section (from mesh.toml)"]),
        ("[router]\nserver = 3", ["router.server: must be a section (from mesh.toml)"]),
        ("[[router]]", ["router: must be a section (from mesh.toml)"]),
        ('drafts = "x"', ["drafts: must be a list (from mesh.toml)"]),
        ('drafts = ["x"]', ["drafts.0: must be a section (from mesh.toml)"]),
        ('[[drafts]]\nkind = "lookup"', ["drafts.0.pool: is required (from mesh.toml)"]),
        ('[[drafts]]\npool = "a b"', [f"drafts.0.pool: String should match pattern '{POOL_NAME}' (from mesh.toml)"]),
        ('[[drafts]]\npool = "a"\n[[drafts]]\npool = "a"', ['drafts: two drafts have the pool "a" (from mesh.toml)']),
        ('[router]\nverifiers = ["h:1"]', ["router.verifiers: `specmesh up` fills it in (from mesh.toml)"]),
        ("[router]\npools = []", ["router.pools: `specmesh up` fills it in (from mesh.toml)"]),
        (
            '[[drafts]]\npool = "a"\n[router]\ncallers = [{ name = "x", token = "0123456789abcdef", pools = ["b"] }]',
            ["router.callers: no such pool: b (from mesh.toml)"],
        ),
        (
            '[[drafts]]\npool = "a"\n[router.policy]\nname = "fixed"\nsettings = { fixed_arm = "b" }',
            ['router.policy.settings.fixed_arm: no such pool: "b"; there are a (from mesh.toml)'],
        ),
        (
            '[[router.callers]]\nname = "x"\ntoken_file = "absent"',
            ["router.callers.token_file: absent holds no token, or is not there (from mesh.toml)"],
        ),
        (
            '[router.server.tls]\ncert_file = "mesh.toml"\nkey_file = "absent"',
            [
                "router.server.tls.cert_file: cannot read mesh.toml: No such file or directory (from mesh.toml)",
                "router.server.tls.key_file: cannot read absent: No such file or directory (from mesh.toml)",
            ],
        ),
        (
            "drafts = [1, { pool = 'a', kind = 'none' }]",
            [
                "drafts.0: must be a section (from mesh.toml)",
                "drafts.1.kind: unknown kind of draft, must be one of hf, lookup, table (from mesh.toml)",
            ],
        ),
        (
            "[router.server]\nport = 7001\nhost = '0.0.0.0'\n[verifier.server]\nport = 7001",
            ["router.server.port: 7001 is verifier.server.port too (from mesh.toml)"],
        ),
        (
            "[router.server]\nport = 7001\n[verifier.server]\nport = 7001\nhost = '[::]'",
            ["router.server.port: 7001 is verifier.server.port too (from mesh.toml)"],
        ),
        ("[router.server]\nport = 7001\nhost = '127.0.0.2'\n[verifier.server]\nport = 7001", []),
        (
            "[router.server]\nport = 7001\n[verifier.server]\nport = 7001",
            ["router.server.port: 7001 is verifier.server.port too (from mesh.toml)"],
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_said_once_and_from_where(tmp_path: Path, target: str, text: str, said: list[str]) -> None:
    model = f'model = "{target}"'
    whole = text.replace("[verifier.server]", f"[verifier]\n{model}\n[verifier.server]")
    if "[verifier" not in text:
        whole = f"verifier = {{ {model} }}\n{text}"
    assert faults(tmp_path, whole) == said


def test_a_mesh_may_leave_out_what_has_a_default(tmp_path: Path) -> None:
    assert faults(tmp_path, '[[drafts]]\npool = "a"') == []
    assert faults(tmp_path, "[verifier]") == ["verifier.model: is required (not given)"]


PORT = "SPECMESH_ROUTER__SERVER__PORT"
SERVER = "SPECMESH_ROUTER__SERVER"


@pytest.mark.parametrize(
    ("text", "port", "environ", "expected"),
    [
        ("", None, {}, DEFAULT_PORT),
        ("[router.server]", None, {}, DEFAULT_PORT),
        ("[router.server]", None, {PORT: "7"}, 7),
        ("[router.server]\nreflection = true", None, {}, DEFAULT_PORT),
        ("[router.server]\nport = 8", None, {PORT: "7"}, 8),
        ("[router.server]\nport = 8", 9, {PORT: "7"}, 9),
        ("", None, {PORT: "7"}, 7),
        ("", None, {SERVER: "{port = 7}"}, 7),
        ("", None, {SERVER: "{reflection = true}"}, DEFAULT_PORT),
        ("", 9, {PORT: "7"}, 9),
        ("", 0, {}, 0),
    ],
)
def test_the_port_that_is_checked_is_the_one_that_the_router_gets(
    tmp_path: Path, target: str, text: str, port: int | None, environ: Mapping[str, str], expected: int
) -> None:
    """By a flag, else the file, else the environment, else the default one."""
    path = tmp_path / "mesh.toml"
    path.write_text(f'[verifier]\nmodel = "{target}"\n{text}')
    mesh, checked = check_mesh(mesh_given(path, port, None, environ), environ)
    told = flags(mesh.router | {"verifiers": ["h:1"]})[1::2]
    settings = {key: value for key, _, value in (word.partition("=") for word in told)}
    started = load_config(RouterConfig, path=None, environ=environ, overrides=settings, prefix="SPECMESH_ROUTER")
    assert started.server == checked.server
    assert started.server.port == expected


def test_the_model_that_is_checked_is_the_one_that_the_verifier_gets(tmp_path: Path, target: str) -> None:
    path = tmp_path / "mesh.toml"
    path.touch()
    variable = "SPECMESH_VERIFIER__MODEL"
    for environ, dtype, expected in (
        ({}, None, {"model": "demo"}),
        ({}, "float32", {"model": "demo", "dtype": "float32"}),
        ({variable: target}, None, {}),
    ):
        assert check_mesh(mesh_given(path, None, dtype, environ), environ)[0].verifier == expected


def test_what_flags_say_is_named_after_them(tmp_path: Path, target: str) -> None:
    said = faults(tmp_path, f'[verifier]\nmodel = "{target}"', dtype="float32")
    assert said == [f"verifier.dtype: has no meaning for model {target} (from --dtype)"]


def test_a_port_in_use_is_told_of_every_service(tmp_path: Path, target: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = faults(
            tmp_path, f'[verifier]\nmodel = "{target}"\n[[drafts]]\npool = "a"\nserver = {{ health_port = {port} }}'
        )
    assert said == [
        f"drafts.0.server.health_port: cannot listen on 127.0.0.1:{port}: Address already in use (from mesh.toml)"
    ]


def test_certificates_that_do_not_belong_together_are_told(tmp_path: Path, target: str) -> None:
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("no pem")
    text = f'[verifier]\nmodel = "{target}"\n[router.server.tls]\n'
    said = faults(tmp_path, text + f'cert_file = "{tmp_path / "cert.pem"}"\nkey_file = "{tmp_path / "key.pem"}"')
    assert len(said) == 1
    assert said[0].startswith("router.server.tls: certificate, key and authority cannot be used together")
    assert said[0].endswith("(from mesh.toml)")
