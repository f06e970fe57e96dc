// Package lint holds the project's own rules as tests: which package may import which, where libraries may be used,
// and which packages must take time and randomness as parameters.
package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/dynamo-go/dynamo-go/"

// imports is the table of docs/architecture.md: what each package may import of this module. Imports go one way.
var imports = map[string][]string{
	"core/internal/enginetest":         {"core/internal/servertest"},
	"core/internal/jsonkind":           {},
	"core/internal/leaktest":           {},
	"core/internal/idtable":            {},
	"core/internal/servertest":         {},
	"core/internal/offheap":            {},
	"core/internal/owned":              {},
	"core/internal/prefetch":           {},
	"core/internal/rawhttp":            {},
	"core/internal/ticks":              {},
	"core/internal/tokenids":           {},
	"core/internal/xxh3":               {"core/internal/prefetch"},
	"core/worker":                      {},
	"core/block":                       {"core/internal/xxh3"},
	"core/event":                       {"core/block", "core/worker"},
	"core/internal/workload":           {"core/block", "core/event", "core/worker"},
	"core/wire":                        {"core/block", "core/event", "core/internal/xxh3", "core/worker"},
	"core/index":                       {"core/block", "core/event", "core/internal/offheap", "core/internal/prefetch", "core/worker"},
	"core/index/model":                 {"core/block", "core/event", "core/index", "core/worker"},
	"core/index/indextest":             {"core/block", "core/event", "core/index", "core/index/model", "core/worker"},
	"core/approx":                      {"core/block", "core/event", "core/index", "core/internal/idtable", "core/worker"},
	"core/approx/model":                {"core/approx", "core/block", "core/worker"},
	"core/tier":                        {"core/block", "core/event", "core/index", "core/internal/idtable", "core/worker"},
	"core/tier/model":                  {"core/block", "core/event", "core/index", "core/tier", "core/worker"},
	"core/radix":                       {"core/block", "core/event", "core/index", "core/worker"},
	"core/load":                        {"core/block", "core/internal/prefetch", "core/worker"},
	"core/load/model":                  {"core/block", "core/load", "core/worker"},
	"core/tally":                       {"core/event", "core/index"},
	"core/schedule":                    {"core/load", "core/worker"},
	"core/schedule/model":              {"core/schedule", "core/worker"},
	"core/affinity":                    {"core/worker"},
	"core/affinity/model":              {"core/affinity", "core/worker"},
	"core/queue":                       {},
	"core/queue/model":                 {"core/queue"},
	"core/replay":                      {"core/event", "core/index", "core/tier"},
	"core/replay/model":                {"core/event", "core/index", "core/index/model"},
	"core/zmq":                         {},
	"core/stream":                      {},
	"core/logs":                        {"core/stream"},
	"core/diagnose":                    {},
	"core/feed":                        {"core/block", "core/diagnose", "core/event", "core/index", "core/internal/xxh3", "core/wire", "core/worker", "core/zmq"},
	"core/snapshot":                    {"core/block", "core/event", "core/feed", "core/index", "core/worker"},
	"core/replica":                     {"core/wire", "core/zmq"},
	"core/tail":                        {"core/feed", "core/stream", "core/wire", "core/zmq"},
	"core/publish":                     {"core/block", "core/event", "core/index", "core/replay", "core/tier", "core/wire", "core/worker", "core/zmq"},
	"core/relay":                       {"core/event", "core/feed", "core/index", "core/publish", "core/wire", "core/worker", "core/zmq"},
	"core/internal/dynamotest":         {"core/internal/servertest", "core/runtime", "core/runtime/discovery", "core/runtime/discovery/etcd", "core/runtime/discovery/file", "core/runtime/nats"},
	"core/engine":                      {"core/internal/rawhttp"},
	"core/engineworker":                {"core/engine", "core/fleet", "core/relay", "core/router", "core/runtime", "core/runtime/discovery", "core/runtime/kvsource", "core/runtime/plane", "core/wire", "core/zmq"},
	"core/serve":                       {"core/block", "core/engine", "core/fleet", "core/internal/owned", "core/internal/tokenids", "core/metrics", "core/router", "core/stream"},
	"core/fleet":                       {"core/diagnose", "core/engine", "core/feed", "core/router", "core/zmq"},
	"core/runtime":                     {"core/runtime/callhome", "core/runtime/discovery", "core/runtime/plane", "core/runtime/secure", "core/runtime/tcp", "core/wire"},
	"core/runtime/event":               {"core/event", "core/feed", "core/replica", "core/runtime/discovery", "core/runtime/plane", "core/wire", "core/worker", "core/zmq"},
	"core/runtime/kvsource":            {"core/event", "core/index", "core/publish", "core/runtime", "core/runtime/discovery", "core/runtime/event", "core/runtime/plane", "core/wire", "core/worker"},
	"core/mockworker":                  {"core/block", "core/mocker", "core/publish", "core/runtime", "core/runtime/event", "core/runtime/kvsource", "core/runtime/plane", "core/stream", "core/wire", "core/worker"},
	"core/kvrouter":                    {"core/feed", "core/replica", "core/router", "core/runtime", "core/runtime/discovery", "core/runtime/event", "core/runtime/plane", "core/wire", "core/worker"},
	"core/mailbox":                     {"core/engineworker", "core/index", "core/kvrouter", "core/publish", "core/relay", "core/router", "core/runtime", "core/runtime/discovery", "core/runtime/event", "core/runtime/kvsource", "core/runtime/plane", "core/stream", "core/wire"},
	"core/runtime/discovery":           {},
	"core/runtime/discovery/file":      {"core/runtime/discovery"},
	"core/runtime/discovery/etcd":      {"core/runtime/discovery"},
	"core/runtime/discovery/storetest": {"core/runtime/discovery"},
	"core/runtime/plane":               {"core/runtime/discovery", "core/wire"},
	"core/runtime/nats":                {"core/runtime/discovery", "core/runtime/plane", "core/runtime/secure", "core/wire"},
	"core/runtime/secure":              {},
	"core/runtime/tcp":                 {"core/runtime/discovery", "core/runtime/plane", "core/runtime/secure"},
	"core/runtime/callhome":            {"core/runtime/discovery", "core/runtime/plane", "core/runtime/secure", "core/wire"},
	"core/mocker":                      {"core/block", "core/internal/jsonkind", "core/publish", "core/stream"},
	"core/router":                      {"core/affinity", "core/approx", "core/block", "core/diagnose", "core/event", "core/feed", "core/index", "core/internal/jsonkind", "core/internal/prefetch", "core/internal/ticks", "core/load", "core/queue", "core/replica", "core/schedule", "core/snapshot", "core/tally", "core/tier", "core/wire", "core/worker", "core/zmq"},
	"core/metrics":                     {"core/diagnose", "core/event", "core/feed", "core/queue", "core/router", "core/tally", "core/worker"},
	"core/metrics/collector":           {"core/metrics", "core/tally"},
	"capi":                             {"core/block", "core/engineworker", "core/event", "core/fleet", "core/index", "core/kvrouter", "core/logs", "core/mailbox", "core/metrics", "core/mocker", "core/mockworker", "core/publish", "core/radix", "core/relay", "core/router", "core/runtime", "core/runtime/discovery", "core/runtime/discovery/etcd", "core/runtime/discovery/file", "core/runtime/kvsource", "core/runtime/nats", "core/runtime/plane", "core/schedule", "core/serve", "core/stream", "core/tail", "core/wire", "core/worker", "core/zmq"},
}

// common is what every package may import, but those that own no goroutine have no use for it.
const common = "core/internal/owned"

// libraries says which packages may use a library, outside tests.
var libraries = map[string][]string{
	"github.com/go-zeromq/zmq4":      {"core/zmq"},
	"github.com/vmihailenco/msgpack": {"core/wire"},
	"github.com/tidwall/btree":       {"core/affinity", "core/queue"},
	"github.com/prometheus":          {"core/metrics/collector"},
	"go.yaml.in/yaml":                {"core/fleet", "core/queue"},
	"github.com/zeebo/xxh3":          {"core/internal/xxh3", "core/block"},
	"github.com/valyala/fasthttp":    {"core/internal/rawhttp", "core/serve"},
	"github.com/klauspost/cpuid":     {"core/internal/prefetch"},
	"golang.org/x/sys/cpu":           {"core/internal/tokenids", "core/internal/xxh3", "core/schedule"},
	"github.com/fsnotify/fsnotify":   {"core/runtime/discovery/file", "core/stream"},
	"github.com/nats-io":             {"core/runtime/nats"},
	"golang.org/x/sys/unix":          {"core/runtime/discovery/file", "core/serve", "core/stream"},
	"golang.org/x/sync":              {"core/feed", "core/runtime/tcp"},
	"go.etcd.io/etcd":                {"core/internal/dynamotest", "core/runtime/discovery/etcd"},
	"google.golang.org/grpc":         {"core/runtime/discovery/etcd"},
	"go.uber.org/zap":                {"core/runtime/discovery/etcd"},
	"github.com/stretchr/testify":    {"core/index/indextest", "core/internal/dynamotest", "core/internal/enginetest", "core/internal/servertest", "core/runtime/discovery/storetest"},
	"C":                              {"capi"},
}

// pure packages own no goroutine and take clock and randomness as parameters.
var pure = []string{"core/worker", "core/block", "core/event", "core/wire", "core/index", "core/approx", "core/load", "core/queue", "core/schedule", "core/affinity", "core/tally", "core/tier", "core/replay", "core/diagnose", "core/radix"}

type file struct {
	pkg, path string
	tree      *ast.File
}

func sources(t *testing.T) (*token.FileSet, []file) {
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	fset := token.NewFileSet()
	var files []file
	for _, top := range []string{"core", "capi"} {
		err = filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testdata") {
				return err
			}
			src, err := os.ReadFile(path)
			require.NoError(t, err)
			tree, err := parser.ParseFile(fset, path, src, parser.ParseComments)
			require.NoError(t, err)
			pkg, err := filepath.Rel(root, filepath.Dir(path))
			files = append(files, file{filepath.ToSlash(pkg), path, tree})
			return err
		})
		require.NoError(t, err)
	}
	require.NotEmpty(t, files)
	return fset, files
}

func TestImportsGoOneWay(t *testing.T) {
	_, files := sources(t)
	for _, f := range files {
		allowed, known := imports[f.pkg]
		require.True(t, known, "%s is not in the import table", f.pkg)
		for _, spec := range f.tree.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			if local, ok := strings.CutPrefix(path, module); ok {
				require.True(t, local == f.pkg || local == common || slices.Contains(allowed, local), "%s must not import %s", f.path, local)
				continue
			}
			for lib, users := range libraries {
				if path == lib || strings.HasPrefix(path, lib+"/") {
					require.Contains(t, users, f.pkg, "%s must not use %s", f.path, lib)
				}
			}
		}
	}
}

func TestPurePackagesTakeTimeAndRandomnessAsParameters(t *testing.T) {
	fset, files := sources(t)
	for _, f := range files {
		if !slices.Contains(pure, f.pkg) {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a goroutine in a package without a life cycle", fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && (n.Sel.Name == "Now" || n.Sel.Name == "Since" || n.Sel.Name == "Sleep") {
					t.Errorf("%s: time.%s", fset.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	}
}

func TestEveryPackageSaysItsJob(t *testing.T) {
	_, files := sources(t)
	said := map[string]bool{}
	for _, f := range files {
		said[f.pkg] = said[f.pkg] || strings.TrimSpace(f.tree.Doc.Text()) != ""
	}
	for pkg, ok := range said {
		require.True(t, ok, "%s has no package comment", pkg)
	}
}

// TestGoroutinesHaveAnOwnerThatRecovers: core/internal/owned is the only place where one is started. A panic of any other would end a host.
func TestGoroutinesHaveAnOwnerThatRecovers(t *testing.T) {
	fset, files := sources(t)
	for _, f := range files {
		if f.pkg == common || strings.HasSuffix(f.pkg, "test") { // of tests
			continue
		}
		for _, fault := range unowned(f.tree) {
			t.Errorf("%s: %s", fset.Position(fault.at), fault.what)
		}
	}
}

type unownedAt struct {
	at   token.Pos
	what string
}

// unowned finds goroutines that nobody recovers.
func unowned(tree *ast.File) (found []unownedAt) {
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, unownedAt{n.Pos(), "a go statement: use owned.Group's Go or Keep"})
		case *ast.ImportSpec:
			if n.Path.Value == `"golang.org/x/sync/errgroup"` {
				found = append(found, unownedAt{n.Pos(), "errgroup: use owned.Group"})
			}
		case *ast.SelectorExpr:
			if isName(n.X, "sync") && n.Sel.Name == "WaitGroup" {
				found = append(found, unownedAt{n.Pos(), "sync.WaitGroup: use owned.Group"})
			}
		case *ast.CallExpr:
			called, ok := n.Fun.(*ast.SelectorExpr)
			if !ok || called.Sel.Name != "AfterFunc" || len(n.Args) != 2 {
				break
			}
			if guard, ok := n.Args[1].(*ast.CallExpr); ok {
				if by, ok := guard.Fun.(*ast.SelectorExpr); ok && isName(by.X, "owned") && by.Sel.Name == "Guarded" {
					break
				}
			}
			found = append(found, unownedAt{n.Pos(), "AfterFunc: use owned.After, or owned.Guarded for what it calls"})
		}
		return true
	})
	return found
}

func isName(e ast.Expr, name string) bool {
	x, ok := e.(*ast.Ident)
	return ok && x.Name == name
}

// TestUnownedGoroutinesAreFound: the rule sees each way to start one.
func TestUnownedGoroutinesAreFound(t *testing.T) {
	for text, faults := range map[string]int{
		`func f() { go f() }`:                                                   1,
		`func f() { go func() {}() }`:                                           1,
		`type t struct{ running sync.WaitGroup }`:                               1,
		`func f() { context.AfterFunc(ctx, f) }`:                                1,
		`func f() { time.AfterFunc(1, func() {}) }`:                             1,
		`import "golang.org/x/sync/errgroup"`:                                   1,
		`func f() { time.AfterFunc(1, owned.Guarded(f)); owned.After(ctx, f) }`: 0,
		`type t struct{ running owned.Group }`:                                  0,
	} {
		tree, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+text, 0)
		require.NoError(t, err, text)
		require.Len(t, unowned(tree), faults, text)
	}
}
