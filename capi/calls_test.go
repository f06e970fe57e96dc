package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A declaration is a function of the header.
type declaration struct {
	result, name string
	parameters   []parameter
	comment      string
}

type parameter struct{ kind, name string } // kind: "const uint32_t *"

// declarations reads the header.
func declarations(t *testing.T) []declaration {
	t.Helper()
	header, err := os.ReadFile("../include/dynamo_go.h")
	require.NoError(t, err)
	var all []declaration
	pattern := regexp.MustCompile(`(?m)((?:^/\* dgo_(?:.|\n)*?\*/\n)?)^(dgo_status|uint32_t|const char \*|void) ?(dgo_\w+)\(([^)]*)\);`)
	for _, m := range pattern.FindAllStringSubmatch(string(header), -1) {
		d := declaration{result: m[2], name: m[3], comment: m[1][strings.LastIndex(m[1], "/* ")+1:]}
		for _, p := range strings.Split(m[4], ",") {
			if p = strings.Join(strings.Fields(p), " "); p != "void" {
				i := strings.LastIndexAny(p, " *")
				d.parameters = append(d.parameters, parameter{strings.TrimSpace(p[:i+1]), p[i+1:]})
			}
		}
		all = append(all, d)
	}
	require.Greater(t, len(all), 40)
	return all
}

func (d *declaration) find(name string) int {
	return slices.IndexFunc(d.parameters, func(p parameter) bool { return p.name == name })
}

// statusesOf lists what the comment says that a function returns, those of a function that it refers to included.
func statusesOf(d *declaration, all []declaration) []string {
	_, returns, _ := strings.Cut(d.comment, "Returns")
	names := regexp.MustCompile(`DGO_[A-Z_]+`).FindAllString(returns, -1)
	for _, other := range regexp.MustCompile(`as\s+(?:\*\s+)?(dgo_\w+)`).FindAllStringSubmatch(returns, -1) {
		i := slices.IndexFunc(all, func(o declaration) bool { return o.name == other[1] })
		if i >= 0 && all[i].name != d.name {
			names = append(names, statusesOf(&all[i], all)...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// right is how to call a function so that it succeeds: the first alternative of a parameter, by "function.parameter" or by name,
// and what comes before and after a call.
var right = map[string]string{
	"block_size": "4", "config": `"{}"`, "dgo_mocker_new.config": "mocker_config", "dgo_publisher_new.config": "publisher_config",
	"options": `"{\"max_tokens\":1}"`, "level": `"off"`, "request_id": `"a"`, "path": "path", "endpoint": `"tcp://127.0.0.1:1"`,
	"replay": `"tcp://127.0.0.1:1"`, "topic": `"t"`, "event": `"{\"event_id\":1,\"data\":\"cleared\"}"`, "dgo_router_load_events.events": `"[]"`,
	"replicas": `"{\"bind\":\"tcp://127.0.0.1:0\"}"`, "payload": `"\x93\xcb\x3f\xf8\0\0\0\0\0\0\x91\x91\xb0" "AllBlocksCleared\x03"`,
	"worker_id": "1", "dgo_router_remove_worker.worker_id": "2", "row_size": "sizeof element", "event_size": "sizeof element", "n_events": "1",
	"capacity": "4", "ticket": "ticket", "timeout_ms": "0", "dgo_stream_next.timeout_ms": "DGO_WAIT_MS_MAX",
	"dgo_router_wait.router": "waiting", "dgo_router_cancel.router": "waiting",
	"dgo_runtime_new.config": `"{\"discovery\":\"mem\"}"`, "dgo_runtime_router.endpoint": `"a.b.c"`, "dgo_runtime_serve.endpoint": `"a.b.served"`,
	"dgo_runtime_model.endpoint": `"a.b.c"`, "dgo_runtime_client.endpoint": `"a.b.c"`, "dgo_runtime_publisher.endpoint": `"a.b.c"`,
	"dgo_runtime_load.endpoint": `"a.b.c"`, "dgo_runtime_serve.options": `"{\"listed\":false}"`, "card": `"{}"`, "item": `"\xc0"`, "body": `"\xc0"`,
	"dgo_runtime_call.options": `"{\"credit\":1}"`, "dgo_router_generate.options": `"{\"credit\":1}"`, "fields": `"\x80"`, "load": `"{}"`,
	"dgo_runtime_publisher.config": `"{\"block_size\":4}"`, "service": "service", "client": "client", "call": "running",
	"dgo_runtime_mocker.endpoint": `"a.b.mocked"`, "dgo_runtime_mocker.config": "mocker_config", "dgo_runtime_mocker.worker_id": "mocked++",
	"dgo_runtime_add_engine.endpoint": `"a.b.engines"`, "dgo_runtime_watch_engines.endpoint": `"a.b.engines"`, "dgo_runtime_engines.endpoint": `"a.b.engines"`,
	"dgo_runtime_drain_engine.endpoint": `"a.b.engines"`, "dgo_runtime_remove_engine.endpoint": `"a.b.engines"`,
	"dgo_runtime_add_engine.config": `"{\"url\":\"http://127.0.0.1:1\",\"worker_id\":77}"`, "dgo_runtime_watch_engines.path": "engines",
	"dgo_runtime_drain_engine.worker_id": "engine", "dgo_runtime_remove_engine.worker_id": "engine",
	"dgo_serve_new.config": "server_config", "grace_ms": "0",
	"dgo_runtime_answer.call": "asked", "dgo_runtime_end.id": "ending", "dgo_router_generate.router": "routed",
}

var around = map[string][2]string{
	"dgo_router_mark_prefill_complete": {"book", "unbook"}, "dgo_router_free": {"book", "unbook"}, "dgo_router_add_output_block": {"book", "unbook"},
	"dgo_router_report_cached_tokens": {"book", "unbook"},
	"dgo_router_remove_worker":        {"add_2", "NULL"}, "dgo_router_wait": {"served", "idle"}, "dgo_router_cancel": {"wait_one", "idle"},
	"dgo_stream_next": {"more", "NULL"}, "dgo_router_close": {"renew", "NULL"}, "dgo_stream_close": {"renew", "NULL"},
	"dgo_mocker_close": {"renew", "NULL"}, "dgo_publisher_close": {"renew", "NULL"}, "dgo_radix_tree_close": {"renew", "NULL"},
	"dgo_serve_close": {"renew", "NULL"}, "dgo_router_replicate": {"NULL", "close_router"}, "dgo_runtime_close": {"renew", "NULL"}, "dgo_runtime_serve": {"NULL", "end_service"},
	"dgo_runtime_model": {"NULL", "take_back"}, "dgo_runtime_answer": {"ask", "NULL"}, "dgo_runtime_client": {"NULL", "end_client"},
	"dgo_runtime_call": {"NULL", "end_call"}, "dgo_router_generate": {"NULL", "end_call"}, "dgo_runtime_more": {"a_call", "NULL"},
	"dgo_runtime_cancel": {"a_call", "NULL"}, "dgo_runtime_end": {"another_client", "end_another"},
	"dgo_runtime_add_engine": {"end_engine", "end_engine"}, "dgo_runtime_drain_engine": {"one_engine", "NULL"}, "dgo_runtime_remove_engine": {"an_engine", "end_engine"},
}

// elements: whose size a parameter tells.
var elements = map[string]string{"row_size": "rows", "event_size": "events"}

// rare functions make what has threads, sockets or memory of its own, or end it.
var rare = regexp.MustCompile(`_(new|open|generate|close|replicate|serve|client|call|end|runtime_router|runtime_publisher|runtime_mocker|add_engine|watch_engines|remove_engine)$`)

// sizes of what strlen does not tell.
var sizes = map[string]string{"payload": "30"}

// alternatives of a parameter: the first is right, the second wrong where anything is.
func alternatives(d *declaration, i int) (c []string) {
	p := d.parameters[i]
	first := func(otherwise string) string {
		for _, key := range []string{d.name + "." + p.name, p.name} {
			if value, ok := right[key]; ok {
				return value
			}
		}
		return otherwise
	}
	room := fmt.Sprintf("(void *)memory[%d]", i)
	wild := []string{"NULL", fmt.Sprintf("(void *)((char *)memory[%d] + 1)", i), "(void *)8", "(void *)4095", "(void *)nowhere"}
	if d.result == "void" { // no error to tell, and no Go that would catch the fault
		wild = wild[:4]
	}
	switch p.kind {
	case "dgo_router", "dgo_stream", "dgo_mocker", "dgo_publisher", "dgo_radix_tree", "dgo_runtime", "dgo_server":
		own := strings.TrimPrefix(p.kind, "dgo_")
		foreign := "mocker.live"
		if own == "mocker" {
			foreign = "publisher.live"
		}
		return []string{first(own + ".live"), foreign, "0", "1", "UINT64_MAX", own + ".closed", own + ".live + 1", own + ".live + ((uint64_t)9000 << 32)", "noise()"}
	case "const dgo_worker *", "const dgo_request *":
		name := strings.TrimSuffix(strings.TrimPrefix(p.kind, "const dgo_"), " *")
		return append([]string{"right_" + name + "()", "broken_" + name + "(1)", "broken_" + name + "(2)", "broken_" + name + "(3)"}, wild...)
	case "const dgo_kv_event *":
		return append([]string{"right_kv_event()"}, wild...)
	case "dgo_buffer *", "dgo_choice *":
		return append([]string{"sized(" + room + ", sizeof(" + strings.TrimSuffix(p.kind, " *") + "))"}, append(wild, "sized((char *)"+room+" + 2048, 5)")...)
	case "dgo_error *":
		return append([]string{"sized(" + room + ", sizeof(dgo_error))"}, append(wild, "sized((char *)"+room+" + 2048, 5)")...)
	case "size_t":
		return []string{first("0"), "SIZE_MAX", "0", "1", "SIZE_MAX / 2"}
	case "int64_t":
		return []string{first("1"), "-1", "INT64_MIN", "INT64_MAX", "0"}
	case "uint32_t":
		return []string{first("0"), "UINT32_MAX", "1u << 31", "101"}
	case "int32_t", "dgo_status":
		return []string{first("0"), "1", "-1", "INT32_MAX", "INT32_MIN"}
	case "uint64_t":
		return []string{first("1"), "UINT64_MAX", "0", "noise()"}
	}
	return append([]string{room}, wild...) // any other pointer
}

// pair gives the alternatives of a pointer and its length.
func pair(d *declaration, i int) (pointers, lengths []string) {
	p := d.parameters[i]
	if p.kind != "const char *" {
		array := "tokens"
		if strings.Contains(p.kind, "uint64_t") {
			array = "hashes"
		}
		return []string{array, "NULL", "NULL", array, array, "(void *)8", "(void *)8", "ODD(void, memory[0])", "(void *)nowhere", "(void *)nowhere"},
			[]string{"8", "8", "0", "SIZE_MAX", "DGO_TOKENS_MAX + 1", "0", "8", "4", "64", "0"}
	}
	value := right[d.name+"."+p.name]
	if value == "" {
		value = right[p.name]
	}
	length := sizes[p.name]
	if length == "" {
		length = "strlen(" + value + ")"
	}
	return []string{value, "NULL", "NULL", `""`, `"\xff\xfe"`, `"\xed\xa0\x80"`, "huge", `"x"`, `"x"`, "(char *)1", "(char *)4095", `"a\0b"`, "nowhere", "huge"},
		[]string{length, "5", "0", "0", "2", "3", "HUGE", "SIZE_MAX", "DGO_JSON_MAX + 1", "0", "1", "3", "8", "DGO_STRING_MAX + 1"}
}

// isPair: the parameter is a pointer whose length is the next one.
func isPair(d *declaration, i int) bool {
	p := d.parameters[i]
	return i+1 < len(d.parameters) && d.parameters[i+1].kind == "size_t" && strings.HasPrefix(p.kind, "const ") &&
		slices.Contains([]string{"const char *", "const uint32_t *", "const uint64_t *"}, p.kind)
}

// program generates the C program that calls every function.
func program(all []declaration) string {
	var b, table strings.Builder
	b.WriteString("#include \"calls.h\"\n" + support)
	for _, d := range all {
		var decls, args, counts, after []string
		wrong := -1
		for i := 0; i < len(d.parameters); i++ {
			p, k := d.parameters[i], len(counts)
			kind := p.kind
			if isPair(&d, i) {
				pointers, lengths := pair(&d, i)
				decls = append(decls, fmt.Sprintf("%s p%d[] = {%s};", kind, i, casts(kind, pointers)),
					fmt.Sprintf("size_t p%d[] = {%s};", i+1, strings.Join(lengths, ", ")))
				args = append(args, fmt.Sprintf("p%d[pick[%d]]", i, k), fmt.Sprintf("p%d[pick[%d]]", i+1, k))
				counts = append(counts, strconv.Itoa(len(pointers)))
				if wrong < 0 {
					wrong = k
				}
				i++
				continue
			}
			values := alternatives(&d, i)
			text := strings.Join(values, ", ")
			if strings.HasSuffix(kind, "*") {
				text = casts(kind, values)
			}
			if of, ok := elements[p.name]; ok {
				element := strings.Trim(strings.TrimPrefix(d.parameters[d.find(of)].kind, "const "), " *")
				text = strings.Replace(text, "sizeof element", "sizeof("+element+")", 1)
			}
			decls = append(decls, fmt.Sprintf("%s p%d[] = {%s};", kind, i, text))
			args = append(args, fmt.Sprintf("p%d[pick[%d]]", i, k))
			counts = append(counts, strconv.Itoa(len(values)))
			_, isHandle := handleKinds[kind]
			if wrong < 0 && (isHandle || d.result == "dgo_status" && strings.HasSuffix(kind, "*") && !strings.HasPrefix(kind, "const") && kind != "dgo_error *") {
				wrong = k
			}
			if kind == "dgo_buffer *" {
				after = append(after, fmt.Sprintf("dgo_buffer_free((dgo_buffer *)(void *)memory[%d]);", i))
			}
			if closer, made := handleKinds[strings.TrimSuffix(kind, " *")]; made && strings.HasSuffix(kind, "*") {
				decls = append(decls, fmt.Sprintf("memory[%d][0] = 0;", i))
				after = append(after, fmt.Sprintf("if (status == DGO_OK && pick[%d] == 0) STATUS(DGO_OK, %s(memory[%d][0], NULL));", k, closer, i))
			}
		}
		call := d.name + "(" + strings.Join(args, ", ") + ")"
		body := "dgo_status status = " + call + ";"
		if d.result != "dgo_status" {
			body = "dgo_status status = DGO_OK;\n  (void)" + strings.TrimSuffix(call, ";") + ";"
			wrong = -1
		}
		slices.SortStableFunc(decls, func(a, b string) int { return strings.Count(a[:6], "memory") - strings.Count(b[:6], "memory") })
		fmt.Fprintf(&b, "static dgo_status call_%s(const int *pick) {\n  (void)pick;\n  %s\n  %s\n  %s\n  return status;\n}\n\n", d.name,
			strings.Join(decls, "\n  "), body, strings.Join(after, "\n  "))
		hooks, ok := around[d.name]
		if !ok {
			hooks = [2]string{"NULL", "NULL"}
		}
		isRare := 0
		if rare.MatchString(d.name) {
			isRare = 1
		}
		statuses := slices.DeleteFunc(statusesOf(&d, all), func(s string) bool { return s == "DGO_OK" })
		fmt.Fprintf(&table, "    {\"%s\", call_%s, %s, %s, %d, %d, %d, {%s}, {%s}},\n", d.name, d.name, hooks[0], hooks[1], len(counts), wrong, isRare,
			strings.Join(append(counts, "0"), ", "), strings.Join(append(statuses, "DGO_OK"), ", "))
	}
	fmt.Fprintf(&b, "const function functions[] = {\n%s    {NULL, NULL, NULL, NULL, 0, 0, 0, {0}, {0}},\n};\n", table.String())
	return b.String()
}

// handleKinds: what closes a handle.
var handleKinds = map[string]string{
	"dgo_router": "dgo_router_close", "dgo_stream": "dgo_stream_close", "dgo_mocker": "dgo_mocker_close",
	"dgo_publisher": "dgo_publisher_close", "dgo_radix_tree": "dgo_radix_tree_close", "dgo_runtime": "dgo_runtime_close", "dgo_server": "dgo_serve_close",
}

func casts(kind string, values []string) string {
	cast := make([]string, len(values))
	for i, v := range values {
		cast[i] = "(" + kind + ")(void *)(uintptr_t)(" + v + ")"
	}
	return strings.Join(cast, ", ")
}

const support = `
/* sized: an empty struct that says how big it is. */
static void *sized(void *memory_of_it, size_t size) {
  uint32_t *p = memset(memory_of_it, 0, size);
  *p = (uint32_t)size;
  return p;
}

static dgo_worker *right_worker(void) {
  static dgo_worker worker;
  memset(&worker, 0, sizeof worker);
  worker.struct_size = sizeof worker;
  worker.worker_id = 3;
  return &worker;
}

/* broken_worker: of another size, full of ones, with members that lead nowhere. */
static dgo_worker *broken_worker(int how) {
  static dgo_worker worker;
  memset(&worker, how == 2 ? 0xff : 0, sizeof worker);
  worker.struct_size = how == 1 ? 7 : sizeof worker;
  if (how == 3) worker.topic.data = worker.host.data = nowhere, worker.topic.size = worker.host.size = 9;
  return &worker;
}

static dgo_request *right_request(void) {
  static dgo_request request;
  memset(&request, 0, sizeof request);
  request.struct_size = sizeof request;
  return &request;
}

static dgo_request *broken_request(int how) {
  static dgo_request request;
  memset(&request, how == 2 ? 0xff : 0, sizeof request);
  request.struct_size = how == 1 ? 7 : sizeof request;
  if (how == 3) request.lora_name.data = nowhere, request.lora_name.size = 9, request.allowed_worker_ids = (const uint64_t *)(void *)nowhere;
  return &request;
}

static dgo_kv_event *right_kv_event(void) {
  static dgo_kv_event event;
  event.kind = DGO_EVENT_CLEARED;
  return &event;
}

static void close_router(void) { dgo_router_close(router.live, NULL), new_router(); }

`

// everyCall compiles the program.
func everyCall(t *testing.T) string {
	source := filepath.Join(t.TempDir(), "calls.c")
	require.NoError(t, os.WriteFile(source, []byte(program(declarations(t))), 0o600))
	return compile(t, source)
}

// TestEveryFunctionIsDocumented: its arguments, and what it returns.
func TestEveryFunctionIsDocumented(t *testing.T) {
	all := declarations(t)
	for _, d := range all {
		require.True(t, strings.HasPrefix(d.comment, "* "+d.name+": "), "%s has no comment, or that of another", d.name)
		if d.result != "dgo_status" {
			continue
		}
		require.Contains(t, statusesOf(&d, all), "DGO_OK", d.name)
		for i, p := range d.parameters {
			if _, isHandle := handleKinds[p.kind]; isHandle {
				require.Contains(t, statusesOf(&d, all), "DGO_BAD_HANDLE", d.name)
			}
			if of := strings.TrimPrefix(strings.TrimSuffix(p.name, "_size"), "n_"); i > 0 && p.kind != "dgo_error *" && (of == p.name || d.find(of) < 0) {
				require.Regexp(t, `\b`+p.name+`\b`, d.comment, d.name) // of others the conventions tell
			}
		}
	}
}

// TestHostileCalls: every function with every wrong argument, alone and with others: a status that its comment names, the process
// alive, another router untouched. A new function is called too.
func TestHostileCalls(t *testing.T) {
	run(t, everyCall(t), t.TempDir(), "abuse")
}

// TestCallsInAForkedChild: each gives DGO_FORKED, and the parent goes on.
func TestCallsInAForkedChild(t *testing.T) {
	run(t, everyCall(t), t.TempDir(), "fork")
}

// TestCallsLeakNothing (https://github.com/krypton-byte/neonize/pull/186): every function, and its refusals. ./build.sh soak makes a
// million calls of each, with the same bound; of those that make or end objects, a hundredth. Files are in memory where the machine has
// a place there: to synchronise one to a disk takes milliseconds.
func TestCallsLeakNothing(t *testing.T) {
	calls := "10000"
	if value := os.Getenv("DGO_SOAK_CALLS"); value != "" {
		calls = value
	}
	t.Setenv("GOGC", "20") // what waits for the collector is little then
	directory, err := os.MkdirTemp("/dev/shm", "dynamo-go-")
	if err != nil {
		directory = t.TempDir()
	}
	defer os.RemoveAll(directory)
	args := []string{directory, "repeat", calls, strconv.Itoa(10 << 20)}
	if only := os.Getenv("DGO_SOAK_FUNCTION"); only != "" { // part of a name
		args = append(args, only)
	}
	t.Log(run(t, everyCall(t), args...))
}
