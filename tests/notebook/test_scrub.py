"""What must not leave the house is taken out, and nothing else is touched."""

import pytest

from hslib.notebook.report.scrub import HOST, SECRET, Scrubber, hosts_in_urls

SCRUBBER = Scrubber.of_this_machine(
    {
        "MY_API_KEY": "plainlookingvalue",
        "HOME": "/srv/people/ann",
        "HOSTNAME": "gpu-17",
        "TERM": "xterm",
    }
)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("it is plainlookingvalue.", f"it is {SECRET}."),
        ('{"api_key": "abcd1234", "tp_size": 8}', f'{{"api_key": "{SECRET}", "tp_size": 8}}'),
        ("admin_api_key='z z', x='y'", f"admin_api_key='{SECRET}', x='y'"),
        ("--api-key hunter22 --tp 8", f"--api-key {SECRET} --tp 8"),
        ("--api-key=hunter22", f"--api-key={SECRET}"),
        ("['--api-key', 'sk-22', '--tp', '8']", f"['--api-key', '{SECRET}', '--tp', '8']"),
        ('["--ssl-keyfile-password", "pw22"]', f'["--ssl-keyfile-password", "{SECRET}"]'),
        ("api_key    hunter22\nnext", f"api_key    {SECRET}\nnext"),
        ("HF_TOKEN=abcdefgh", f"HF_TOKEN={SECRET}"),
        ("password: correcthorse", f"password: {SECRET}"),
        ("<th>api_key</th>\n  <td>hunter22</td>", f"<th>api_key</th>\n  <td>{SECRET}</td>"),
        ("&quot;api_key&quot;: &quot;abcd1234&quot;", f"&quot;api_key&quot;: &quot;{SECRET}&quot;"),
        ("Authorization: Bearer abc.def-ghi", f"Authorization: Bearer {SECRET}"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- x", f"{SECRET} x"),
        ("https://ann:pw@box.corp:8000/x", f"https://{HOST}:8000/x"),
        ("http://10.2.3.4:8000/generate", f"http://{HOST}:8000/generate"),
        ("http://kimi-head:30000 and ws://[::1]:9", f"http://{HOST}:30000 and ws://{HOST}:9"),
        ("on gpu-17, GPU-17 and n3.cluster.local", f"on {HOST}, {HOST} and {HOST}"),
        ("2001:db8:0:1:2:3:4:5 fe80::1", f"{HOST} {HOST}"),
        ("ann@gpu-17:~$", f"{HOST}:~$"),
        ("/home/ann/runs /Users/Ann/x /" + "root/.cache", "~/runs ~/x ~/.cache"),
        ("/srv/people/ann/kit, /srv/people/anna", "~/kit, /srv/people/anna"),
    ],
)
def test_secrets_hosts_and_homes_are_taken_out(text: str, clean: str) -> None:
    assert SCRUBBER.clean(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "76,228 tokens, num_tokens: 123, token 5, max_tokens=4096",
        "api_key_env: OPENAI_KEY",
        "api_key='' password=\"\" x='y'",
        "api_key None, 'api_key': None, password is required",
        "the secret of the kit is that it has none",
        "SGLang 0.5.23, torch 2.14.1, at 12:30:45, 3:31:59",
        "see https://github.com/sgl-project/sglang and https://arxiv.org/abs/2402.17762",
        "boundaries 3, 31, 59 of model.layers.59, hslib.stats.measure, x.local_rank",
        "/data/kimi-states /rooted/x /homework, a::b, 1::2",
        "sk-learn, hf_hub, task-risk-free",
        "<table><tr><td>mean_l2</td><td>26.5</td></tr></table>",
        "gpu-170 and xgpu-17",
    ],
)
def test_what_is_none_of_these_stays(text: str) -> None:
    assert SCRUBBER.clean(text) == text


def test_this_machine_knows_its_own_names_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "trainbox7")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789")
    found = Scrubber.of_this_machine()
    assert found.clean("trainbox7 says 0123456789") == f"{HOST} says {SECRET}"
    assert Scrubber().clean("trainbox7 says 0123456789") == "trainbox7 says 0123456789"


def test_short_values_of_variables_are_no_secrets() -> None:
    assert Scrubber.of_this_machine({"SOME_KEY": "on"}).clean("on and on") == "on and on"


def test_hosts_of_urls_are_known_when_they_can_be_told_from_words() -> None:
    text = "http://kimi-head:8000 http://server:8000 https://github.com/a http://10.0.0.7/"
    assert hosts_in_urls(text) == ("10.0.0.7", "kimi-head")
    known = Scrubber().knowing(hosts_in_urls(text))
    assert known.clean("kimi-head died, the server did not") == f"{HOST} died, the server did not"


def test_a_clusters_address_is_one_though_it_is_no_url() -> None:
    for text in (
        'ray_address = "head:6379"',
        r'"ray_address = \"head:6379\"\n"',
        "-p ray_address head:6379",
    ):
        assert hosts_in_urls(text) == ("head",)
    assert hosts_in_urls('ray_address = "local"') == ()
