// Command godoc writes the reference of the Go packages as Markdown, a page a package, from their own comments.
//
//	go run ./docs/site/godoc FOLDER
//
// A page has what `go doc -all` tells. Names in brackets lead to where they are explained.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/doc/comment"
	"go/format"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const module = "github.com/dynamo-go/dynamo-go/"

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./docs/site/godoc FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "godoc:", err)
		os.Exit(1)
	}
}

func run(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	var packages []*page
	err := filepath.WalkDir("core", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || !d.IsDir():
			return err
		case slices.Contains([]string{"internal", "testdata", "model", "indextest", "storetest"}, d.Name()):
			return filepath.SkipDir
		}
		p, err := load(path)
		if p != nil {
			packages = append(packages, p)
		}
		return err
	})
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, p := range packages {
		known[p.path] = true
	}
	var index strings.Builder
	index.WriteString("# Go packages\n\nHosts need `core/router`, or `core/kvrouter` in a Dynamo deployment, and perhaps `core/metrics`, `core/publish`, `core/relay` and `core/mocker`; " +
		"the others are what these are made of.\n\n| package | its job |\n|---|---|\n")
	for _, p := range packages {
		p.known = known
		if err := os.WriteFile(filepath.Join(folder, p.file()), p.markdown(), 0o644); err != nil {
			return err
		}
		synopsis := strings.TrimPrefix(p.doc.Synopsis(p.doc.Doc), "Package "+p.doc.Name+" ")
		fmt.Fprintf(&index, "| [`%s`](%s) | %s |\n", p.path, p.file(), strings.ReplaceAll(synopsis, "|", `\|`))
	}
	return os.WriteFile(filepath.Join(folder, "index.md"), []byte(index.String()), 0o644)
}

// A page is the reference of one package.
type page struct {
	path  string // below the module
	doc   *doc.Package
	fset  *token.FileSet
	known map[string]bool // packages that have pages
	out   bytes.Buffer
}

func load(path string) (*page, error) {
	found, err := build.Default.ImportDir(path, 0)
	if _, empty := err.(*build.NoGoError); empty {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	p := &page{path: filepath.ToSlash(path), fset: token.NewFileSet()}
	var files []*ast.File
	for _, name := range slices.Concat(found.GoFiles, found.TestGoFiles, found.XTestGoFiles) {
		file, err := parser.ParseFile(p.fset, filepath.Join(path, name), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	p.doc, err = doc.NewFromFiles(p.fset, files, module+p.path)
	return p, err
}

func (p *page) file() string { return pageOf(p.path) }

func pageOf(path string) string {
	return strings.ReplaceAll(path, "/", "_") + ".md"
}

func (p *page) markdown() []byte {
	fmt.Fprintf(&p.out, "# %s\n\n```go\nimport \"%s%s\"\n```\n\n", p.path, module, p.path)
	p.text(p.doc.Doc)
	p.examples(p.doc.Examples)
	p.values("Constants", p.doc.Consts)
	p.values("Variables", p.doc.Vars)
	p.functions(2, "", p.doc.Funcs)
	for _, t := range p.doc.Types {
		p.heading(2, "type "+t.Name, t.Name)
		p.code(t.Decl)
		p.text(t.Doc)
		p.examples(t.Examples)
		for _, group := range [][]*doc.Value{t.Consts, t.Vars} {
			p.declared(group)
		}
		p.functions(3, "", t.Funcs)
		p.functions(3, t.Name+".", t.Methods)
	}
	return p.out.Bytes()
}

func (p *page) heading(level int, text, anchor string) {
	fmt.Fprintf(&p.out, "%s %s {#%s}\n\n", strings.Repeat("#", level), text, anchor)
}

func (p *page) values(title string, values []*doc.Value) {
	if len(values) == 0 {
		return
	}
	p.heading(2, title, strings.ToLower(title))
	p.declared(values)
}

func (p *page) declared(values []*doc.Value) {
	for _, v := range values {
		for _, name := range v.Names {
			fmt.Fprintf(&p.out, "<a id=\"%s\"></a>", name)
		}
		p.out.WriteString("\n\n")
		p.code(v.Decl)
		p.text(v.Doc)
	}
}

func (p *page) functions(level int, owner string, functions []*doc.Func) {
	for _, f := range functions {
		title := "func " + f.Name
		if f.Recv != "" {
			title = fmt.Sprintf("func (%s) %s", f.Recv, f.Name)
		}
		p.heading(level, title, owner+f.Name)
		p.code(f.Decl)
		p.text(f.Doc)
		p.examples(f.Examples)
	}
}

func (p *page) examples(examples []*doc.Example) {
	for _, e := range examples {
		fmt.Fprintf(&p.out, "Example%s:\n\n", strings.TrimRight(" "+e.Suffix, " "))
		var code bytes.Buffer
		if err := format.Node(&code, p.fset, &printer.CommentedNode{Node: e.Code, Comments: e.Comments}); err != nil {
			panic(err)
		}
		body := strings.TrimSuffix(strings.TrimPrefix(code.String(), "{\n"), "\n}")
		p.block(regexp.MustCompile(`(?m)^\t`).ReplaceAllString(body, ""))
	}
}

func (p *page) code(node ast.Node) {
	var code bytes.Buffer
	if f, ok := node.(*ast.FuncDecl); ok {
		f.Body = nil
	}
	if err := format.Node(&code, p.fset, node); err != nil {
		panic(err)
	}
	p.block(code.String())
}

func (p *page) block(code string) {
	fmt.Fprintf(&p.out, "```go\n%s\n```\n\n", strings.TrimSpace(code))
}

func (p *page) text(text string) {
	out := p.doc.Printer()
	out.HeadingLevel = 3
	out.HeadingID = func(*comment.Heading) string { return "" }
	out.DocLinkURL = func(link *comment.DocLink) string {
		anchor := link.Name
		if link.Recv != "" {
			anchor = link.Recv + "." + link.Name
		}
		path := strings.TrimPrefix(link.ImportPath, module)
		switch {
		case link.ImportPath == "" || path == p.path:
			return "#" + anchor
		case p.known[path]:
			return strings.TrimSuffix(pageOf(path)+"#"+anchor, "#")
		}
		return "https://pkg.go.dev/" + link.ImportPath + "#" + anchor
	}
	p.out.Write(out.Markdown(p.doc.Parser().Parse(text)))
	p.out.WriteString("\n")
}
