import json
import os
import sys
from pathlib import Path

import pytest

from dynamod.graph import importing
from dynamod.graph.graph import Graph
from dynamod.graph.load import load_graph, load_service
from dynamod.message.errors import UserError

HELLO = """
    from dynamod.graph.service import service, endpoint, depends

    @service
    class Backend:
        @endpoint()
        async def generate(self, request: dict):
            for word in request["text"].split():
                yield word + "-back"

    @service
    class Frontend:
        backend = depends(Backend)

        @endpoint()
        async def hello(self, request: dict):
            async for word in self.backend.generate(request):
                yield "front-" + word
"""


def fails(*args, **kwargs) -> str:
    with pytest.raises(UserError) as caught:
        load_graph(*args, **kwargs)
    line = caught.value.line()
    assert "\n" not in line
    return line


@pytest.mark.parametrize("target", ["hello:Frontend", "hello.py:Frontend", "./hello.py:Frontend"])
async def test_hello_without_links_follows_depends(target, tmp_path, write):
    write("hello.py", HELLO)
    modules, path = dict(sys.modules), list(sys.path)
    graph = load_graph(target, None, working_dir=tmp_path)
    assert "hello" not in sys.modules
    assert sys.path == path
    assert all(sys.modules[name] is module for name, module in modules.items())
    assert list(graph.services) == ["Frontend", "Backend"]
    assert [spec.name for spec in graph.start_order()] == ["Backend", "Frontend"]
    front = graph.services["Frontend"]
    assert (front.path, front.file, front.sys_path) == ("hello:Frontend", str(tmp_path / "hello.py"), (str(tmp_path),))
    assert front.depends["backend"].address("generate") == "dynamo.Backend.generate"
    assert front.endpoints["hello"].streams

    back = load_service(graph.services["Backend"]).create()

    class Client:
        def generate(self, request):
            return back.generate(request)

    instance = load_service(front).create({"backend": Client()})
    spec = load_service(front).endpoints["hello"]
    assert [item async for item in spec.stream(instance, {"text": "a b"})] == ["front-a-back", "front-b-back"]


def test_file_anywhere_even_with_an_odd_name(tmp_path, write):
    file = write(
        "else where/my-graph.py",
        "from components.helper import NAME\n" + "\n".join(HELLO.splitlines()).replace("\n    ", "\n"),
    )
    write("work/components/helper.py", "NAME = 1")
    graph = load_graph(f"{file}:Frontend", None, working_dir=tmp_path / "work")
    spec = graph.services["Frontend"]
    assert spec.path == "my_graph:Frontend"
    assert load_service(ServiceSpecTrip(graph).services["Frontend"]).name == "Frontend"


def ServiceSpecTrip(graph: Graph) -> Graph:
    return Graph.from_dict(json.loads(json.dumps(graph.to_dict())))


def test_two_graphs_share_components_and_do_not_mix(project):
    small = load_graph("graphs.small:Frontend", None, working_dir=project)
    routed = load_graph("graphs.routed:Frontend", None, working_dir=project)
    again = load_graph("graphs.small:Frontend", None, working_dir=project)
    assert list(small.services) == ["Frontend", "Processor", "Worker"]
    assert list(routed.services) == ["Frontend", "Processor", "Router", "Worker"]
    assert again == small
    assert not {name for name in sys.modules if name.split(".")[0] in ("components", "graphs")}
    assert small.edges == (("Frontend", "Processor"), ("Processor", "Worker"))
    # maximal depends, pruned to what is linked by anybody
    assert set(small.services["Processor"].depends) == {"worker"}
    assert set(routed.services["Processor"].depends) == {"worker", "router"}
    assert small.services["Worker"].depends == {}
    assert small.services["Worker"].placement == "own"
    assert small.services["Processor"].placement == "ingress"
    assert small.services["Worker"].path == "components.all:Worker"
    assert ServiceSpecTrip(routed) == routed
    assert load_service(small.services["Processor"]).endpoints.keys() == {"chat/completions"}


@pytest.mark.parametrize("change", [{"roots": 1}, {"root": 1}, {"services": {"A": {"name": "A"}}}, {"services": []}])
def test_what_is_no_graph_is_refused(project, change):
    data = load_graph("graphs.small:Frontend", None, working_dir=project).to_dict()
    with pytest.raises(ValueError, match=r"unknown keys: roots|Expected|missing"):
        Graph.from_dict(data | change)
    spec = data["services"]["Worker"]
    with pytest.raises(ValueError, match="unknown keys: actor"):
        Graph.from_dict(data | {"services": {"Worker": spec | {"actor": "m:Actor"}}})


def test_edited_files_are_read_again(project, write):
    load_graph("graphs.small:Frontend", None, working_dir=project)
    file = project / "components/all.py"
    file.write_text(file.read_text().replace("resources={", 'workers=5, resources={"gpu": 2} or {'))
    changed = load_graph("graphs.small:Frontend", None, working_dir=project)
    assert changed.services["Worker"].workers == 5


def test_shipped_graphs_and_a_users_folder_of_the_same_name(tmp_path, write, monkeypatch):
    shipped = tmp_path / "shipped"
    monkeypatch.setattr(importing, "shipped_root", lambda: shipped)
    write("shipped/graphs/agg.py", HELLO)
    write("shipped/configs/agg.yaml", "Frontend: {port: 1}")
    write("user/graphs/__init__.py", "")
    write("user/graphs/mine.py", HELLO)
    write("plain/graphs/mine.py", "from graphs.agg import Backend, Frontend")
    user, plain = tmp_path / "user", tmp_path / "plain"
    own = load_graph("graphs.mine:Frontend", None, working_dir=user)
    fallen = load_graph("graphs.agg:Frontend", "configs/agg.yaml", working_dir=user)
    merged = load_graph("graphs.mine:Frontend", None, working_dir=plain)
    assert own.services["Frontend"].file == str(user / "graphs/mine.py")
    assert fallen.services["Frontend"].file == str(shipped / "graphs/agg.py")
    assert fallen.services["Frontend"].config == {"port": 1}
    assert merged.services["Frontend"].path == "graphs.agg:Frontend"
    for graph in (own, fallen, merged):
        assert load_service(graph.services["Backend"]).name == "Backend"
    assert "graphs.agg" in fails("graphs.ag:Frontend", None, working_dir=user)
    assert "did you mean 'configs/agg.yaml'" in fails(None, "configs/ag.yaml", working_dir=user)
    assert "available: graphs.agg, graphs.mine" in fails(None, None, working_dir=user)


def test_config_names_the_graph(project):
    graph = load_graph(None, "configs/small.yaml", working_dir=project, environ={})
    worker = graph.services["Worker"]
    assert worker.config == {"model": "tiny", "block-size": 64}
    assert (worker.workers, worker.envs) == (2, {"A": "one"})
    assert graph.source == "configs/small.yaml"
    assert graph.config["Worker"]["ServiceArgs"]["workers"] == 2
    assert "graph" not in graph.config
    built = load_service(worker).parse_config(worker.config)
    assert (built.model, built.block_size) == ("tiny", 64)


def test_service_name(project):
    graph = load_graph("graphs.small:Frontend", None, working_dir=project, service_name="Processor")
    assert list(graph.services) == ["Processor"]
    assert graph.services["Processor"].depends["worker"].component == "Worker"
    line = fails("graphs.small:Frontend", None, working_dir=project, service_name="Procesor")
    assert "did you mean 'Processor'" in line


def test_errors_name_the_place(project, write):
    write("graphs/broken.py", "x = 1\nfrom components.all import Frontend\n\ndef f(:\n")
    write("graphs/raises.py", "\n\nraise ValueError('many\\nlines')\n")
    write("graphs/exits.py", "import sys\nsys.exit(3)\n")
    write("graphs/missing.py", "import no_such_thing\n")
    write("graphs/options.py", "from dynamod.graph.service import service\n\n@service(workers='x')\nclass A: ...\n")
    write("graphs/plain.py", "class A: ...\n")
    here = {"working_dir": project}
    assert f"{project}/graphs/broken.py:4: SyntaxError" in fails("graphs.broken:Frontend", None, **here)
    assert f"{project}/graphs/raises.py:3: ValueError: many lines" in fails("graphs.raises:X", None, **here)
    assert f"{project}/graphs/exits.py:2: SystemExit" in fails("graphs.exits:X", None, **here)
    assert f"{project}/graphs/missing.py:1: ModuleNotFoundError" in fails("graphs.missing:X", None, **here)
    assert f"{project}/graphs/options.py:3: service A: workers" in fails("graphs.options:A", None, **here)
    assert "'A' in" in fails("graphs.plain:A", None, **here)
    assert "decorate the class with @service" in fails("graphs.plain:A", None, **here)
    line = fails("graphs.small:Frontnd", None, **here)
    assert "did you mean 'Frontend'? services: Frontend, PrefillWorker, Processor, Router, Worker" in line
    assert "did you mean 'graphs.small'?" in fails("graphs.smal:Frontend", None, **here)
    assert "write module.path:Class" in fails("graphs.small", None, **here)
    assert "no graph file" in fails("graphs/smal.py:Frontend", None, **here)
    assert "does not exist" in fails("graphs.small:Frontend", None, working_dir=project / "nowhere")
    assert "graphs.broken" not in sys.modules


def test_one_namespace(write, tmp_path):
    write(
        "two.py", HELLO.replace("@service\n    class Backend", "@service(dynamo={'namespace': 'b'})\n    class Backend")
    )
    assert "all services of a graph must be in one namespace: Frontend in 'dynamo'" in fails(
        "two:Frontend", None, working_dir=tmp_path
    ).replace("Backend in 'b', ", "")


ABSTRACT = """
    from dynamod.graph.service import AbstractService, abstract_endpoint, depends, endpoint, service

    class Face(AbstractService):
        @abstract_endpoint
        async def generate(self, request): ...

    @service
    class One(Face):
        @endpoint()
        async def generate(self, request): yield 1

    @service
    class Front:
        back = depends(Face)
        late = depends("Late")

    @service
    class Late: ...
"""


def test_abstract_dependency_is_served_by_the_linked_subclass(write, tmp_path):
    write("faces.py", ABSTRACT)
    write("linked.py", "from faces import *\nFront.link(One)\n")
    write("both.py", "from faces import *\nFront.link(One)\nFront.link(Late)\n")
    graph = load_graph("linked:Front", None, working_dir=tmp_path)
    assert {name: info.service for name, info in graph.services["Front"].depends.items()} == {"back": "One"}
    graph = load_graph("both:Front", None, working_dir=tmp_path)
    assert {name: info.service for name, info in graph.services["Front"].depends.items()} == {
        "back": "One",
        "late": "Late",
    }
    line = fails("faces:Front", None, working_dir=tmp_path)
    assert "Face is abstract and cannot be served; link a concrete implementation: Front.link(" in line


YAML = """\
graph:
  services:
    Frontend: hello:Frontend
    A: {class: "hello:Backend", workers: 3, resources: {gpu: 1}}
    B:
      class: hello.py:Backend
  links: [Frontend -> A, [A, B]]
  namespace: other
A: {ServiceArgs: {workers: 4}}
"""


def test_graph_in_yaml_alone(write, tmp_path):
    write("hello.py", HELLO)
    write("g.yaml", YAML)
    graph = load_graph(None, "g.yaml", working_dir=tmp_path, environ={})
    assert (graph.root, graph.namespace, graph.target) == ("Frontend", "other", "g.yaml")
    assert graph.edges == (("Frontend", "A"), ("A", "B"))
    a, b = graph.services["A"], graph.services["B"]
    assert (a.workers, a.placement, a.component, a.path) == (4, "own", "A", "hello:Backend")
    assert (b.workers, b.placement) == (1, "ingress")
    assert graph.services["Frontend"].depends["backend"].address("generate") == "other.A.generate"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("links:", "linkz:", "g.yaml:7: graph.linkz: unknown key; did you mean 'links'? known keys: links"),
        ("[A, B]", "[A, C]", "g.yaml:7: graph.links.1: no service 'C'; services: A, B, Frontend"),
        ("workers: 3", "workers: x", "g.yaml:4: graph.services.A.workers: expected an integer"),
        ("workers: 3", "wrkers: 3", "g.yaml:4: graph.services.A.wrkers: unknown key; did you mean 'workers'"),
        ("hello:Frontend", "hello:Nobody", "g.yaml:3: graph.services.Frontend: "),
        ("  links: [Frontend -> A, [A, B]]\n", "", "which service is the root? A, B, Frontend could be; add root"),
        ("namespace: other", "root: C", "g.yaml:8: graph.root: no service 'C'"),
        ("class: hello.py:Backend", "workers: 1", "g.yaml:5: graph.services.B: needs a class path"),
    ],
)
def test_wrong_yaml_graph(old, new, says, write, tmp_path):
    write("hello.py", HELLO)
    write("g.yaml", YAML.replace(old, new))
    assert says in fails(None, "g.yaml", working_dir=tmp_path, environ={})


def test_installed_packages_are_found_but_not_imported_twice(write, tmp_path, monkeypatch):
    write("site-packages/pack/__init__.py", "")
    write("site-packages/pack/parts.py", HELLO)
    write("site-packages/pack/graph.py", "from pack.parts import *\nFrontend.link(Frontend)\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    here = tmp_path / "here"
    here.mkdir()
    for _ in range(2):
        graph = load_graph("pack.graph:Frontend", None, working_dir=here)
        assert list(graph.services) == ["Frontend"]
        assert graph.services["Frontend"].path == "pack.parts:Frontend"
    parts = sys.modules["pack.parts"]
    load_graph("pack.graph:Frontend", None, working_dir=here)
    assert sys.modules["pack.parts"] is parts


def test_a_file_may_not_hide_a_module_of_python(write, tmp_path):
    write("json.py", HELLO)
    assert "rename the file" in fails("json:Frontend", None, working_dir=tmp_path)


def test_path_that_a_graph_file_adds_reaches_the_child(write, tmp_path):
    write("lib/parts.py", HELLO)
    write(
        "main.py",
        "import sys\nsys.path.insert(0, 'LIB')\nfrom parts import Frontend\n".replace("LIB", f"{tmp_path}/lib"),
    )
    graph = load_graph("main:Frontend", None, working_dir=tmp_path)
    assert f"{tmp_path}/lib" in graph.services["Frontend"].sys_path
    assert "parts" not in sys.modules
    assert load_service(graph.services["Backend"]).name == "Backend"


def test_two_services_of_one_name(write, tmp_path):
    write("parts.py", HELLO)
    lines = [
        "import parts",
        "from dynamod.graph.service import service",
        "@service",
        "class Backend: ...",
        "F = parts.Frontend",
    ]
    write("main.py", "\n".join([*lines, "F.link(Backend).link(parts.Backend)", ""]))
    assert "two services of the graph are named Backend" in fails("main:F", None, working_dir=tmp_path)


def test_environ_is_the_default(project, monkeypatch):
    monkeypatch.setitem(os.environ, "DYN_DEPLOYMENT_CONFIG", "Frontend: {port: 7}")
    assert load_graph("graphs.small:Frontend", None, working_dir=project).services["Frontend"].config == {"port": 7}


def test_a_graph_has_a_config_of_its_own(tmp_path: Path) -> None:
    assert importing.own_config("graphs.agg:Frontend", tmp_path) == "configs/agg.yaml"
    assert importing.own_config("graphs.agg:Other", tmp_path) is None
    assert importing.own_config("graphs.nothing:Frontend", tmp_path) is None
    assert importing.own_config("other.agg:Frontend", tmp_path) is None
    assert importing.own_config("agg.py:Frontend", tmp_path) is None
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/agg.yaml").write_text("graph: graphs.mine:Frontend\n")
    assert importing.own_config("graphs.agg:Frontend", tmp_path) is None, "the user's file comes first"
