"""Load the ENGINE'S OWN kv_events.py (unmodified, from its PyPI wheel) with minimal import stubs.
   load("sglang", "0.5.23") -> module object.
   Only bind() of wildcard tcp endpoints is redirected to loopback, nothing else."""
import sys, types, os, importlib.util, logging, dataclasses, ast
import zmq
ROOT = os.environ.get("WIRE_SRC", "src")
logging.basicConfig(level=os.environ.get("PUB_LOG", "WARNING"), stream=sys.stderr)

_orig_bind = zmq.Socket.bind
def _bind(self, addr):
    a = addr.decode() if isinstance(addr, bytes) else addr
    if a.startswith("tcp://*:"):
        a = "tcp://127.0.0.1:" + a.rsplit(":", 1)[1]
    return _orig_bind(self, a)
zmq.Socket.bind = _bind

def _mod(name, pkg=False, **kw):
    m = types.ModuleType(name)
    if pkg: m.__path__ = []
    m.__dict__.update(kw)
    sys.modules[name] = m
    if "." in name:
        p, c = name.rsplit(".", 1)
        if p in sys.modules: setattr(sys.modules[p], c, m)
    return m

def _exec(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    m = importlib.util.module_from_spec(spec)
    sys.modules[name] = m
    if "." in name:
        p, c = name.rsplit(".", 1)
        if p in sys.modules: setattr(sys.modules[p], c, m)
    spec.loader.exec_module(m)
    return m

def extract(path, names, ns):
    """exec selected top-level defs/assignments of a real file (unchanged source) in namespace ns"""
    src = open(path).read(); tree = ast.parse(src); got = []
    for n in tree.body:
        nm = getattr(n, "name", None)
        if nm is None and isinstance(n, (ast.Assign, ast.AnnAssign)):
            t = n.targets[0] if isinstance(n, ast.Assign) else n.target
            nm = getattr(t, "id", None)
        if nm in names:
            exec(compile(ast.Module([n], []), path, "exec"), ns); got.append(nm)
    return got

def load_sglang(v):
    for p in ("sglang", "sglang.srt", "sglang.srt.disaggregation"):
        _mod(p, pkg=True)
    d = f"{ROOT}/sglang-{v}/sglang/srt"
    _mod("sglang.srt.utils", pkg=True)
    class NetworkAddress:                    # stub (real one needs more imports); only used for /server_info
        def __init__(s, host, port): s.host, s.port = host, port; s.is_ipv6 = ":" in host
        @classmethod
        def parse(c, x):
            h, p = x.rsplit(":", 1); return c(h.strip("[]"), int(p))
        def to_tcp(s): return f"tcp://[{s.host}]:{s.port}" if s.is_ipv6 else f"tcp://{s.host}:{s.port}"
    _mod("sglang.srt.utils.network", NetworkAddress=NetworkAddress)
    _mod("sglang.srt.runtime_context", get_parallel=lambda: None)
    return _exec("sglang.srt.disaggregation.kv_events", f"{d}/disaggregation/kv_events.py")

def load(engine, v):
    if engine != "sglang":
        raise ValueError("only the sglang wheel is loaded here")
    return load_sglang(v)
