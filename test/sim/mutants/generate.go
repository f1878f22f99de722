package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// core are the packages in which mutants are generated: they decide.
var core = []string{"pkg/core/allocation", "pkg/core/cache", "pkg/core/decide", "pkg/core/gpu", "pkg/core/placement", "pkg/core/preemption", "pkg/core/ranking"}

// near are the packages whose tests look for a mutant that the tests of its own package miss.
var near = append(slices.Clone(core), "pkg/kube/api", "pkg/scheduler/extender", "pkg/scheduler/binder", "pkg/node/nodestate", "pkg/node/reconcile", "pkg/node/deviceplugin", "pkg/core/defrag")

// The kinds of faults that are generated.
const (
	comparison = "comparison" // another operator
	dropped    = "error"      // an error that is not looked at
	order      = "order"      // two operands of a comparison function, or two statements, change places
	lock       = "lock"       // a lock that is not taken
)

var operators = map[token.Token]string{
	token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">",
	token.EQL: "!=", token.NEQ: "==", token.LAND: "||", token.LOR: "&&",
}

// site is a place in the source and what stands there instead.
type site struct {
	kind       string
	file       string // from the root of the module
	function   string
	line       int
	start, end int // in bytes
	text       string
	source     []byte // of the file
}

// String names a mutant without its line number, so that it has the name for as long as its
// function has these lines.
func (s site) String() string {
	from := strings.LastIndexByte(string(s.source[:s.start]), '\n') + 1
	to := s.end + strings.IndexByte(string(s.source[s.end:]), '\n')
	brief := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	return fmt.Sprintf("%s %s: %s => %s", s.file, s.function, brief(string(s.source[from:to])),
		brief(string(s.source[from:s.start])+s.text+string(s.source[s.end:to])))
}

func (s site) content() []byte {
	return slices.Concat(s.source[:s.start], []byte(s.text), s.source[s.end:])
}

// sites returns all places of the core where a fault can be put.
func sites(root string) ([]site, error) {
	var out []site
	for _, dir := range core {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			found, err := sitesOf(filepath.Join(dir, filepath.Base(file)), source)
			if err != nil {
				return nil, err
			}
			out = append(out, found...)
		}
	}
	return out, nil
}

func sitesOf(name string, source []byte) (out []site, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, 0)
	if err != nil {
		return nil, err
	}
	at := func(p token.Pos) int { return set.Position(p).Offset }
	text := func(n ast.Node) string { return string(source[at(n.Pos()):at(n.End())]) }
	for _, d := range file.Decls {
		function, ok := d.(*ast.FuncDecl)
		if !ok || function.Body == nil {
			continue
		}
		add := func(kind string, start, end token.Pos, text string) {
			out = append(out, site{kind, name, function.Name.Name, set.Position(start).Line, at(start), at(end), text, source})
		}
		errs := make(map[ast.Expr]bool)
		ast.Inspect(function.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.IfStmt:
				if cond, ok := n.Cond.(*ast.BinaryExpr); ok && cond.Op == token.NEQ && text(cond.Y) == "nil" && strings.HasSuffix(strings.ToLower(text(cond.X)), "err") {
					errs[cond] = true
					add(dropped, cond.Pos(), cond.End(), "false && "+text(cond))
				}
			case *ast.BinaryExpr:
				if other, ok := operators[n.Op]; ok && !errs[n] {
					add(comparison, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), other)
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(f.Sel.Name, "Compare") && len(n.Args) == 2 {
					add(order, n.Args[0].Pos(), n.Args[1].End(), text(n.Args[1])+", "+text(n.Args[0]))
				}
			case *ast.BlockStmt:
				for i := range len(n.List) - 1 {
					first, second := n.List[i], n.List[i+1]
					switch {
					case isLock(first, text):
						add(lock, first.Pos(), second.End(), "")
					case moves(first) && moves(second) && (matters(first, second, text) || matters(second, first, text)):
						add(order, first.Pos(), second.End(), text(second)+"; "+text(first))
					}
				}
			}
			return true
		})
	}
	return out, nil
}

// isLock reports whether a statement takes a lock; the next one is to give it back.
func isLock(s ast.Stmt, text func(ast.Node) string) bool {
	e, ok := s.(*ast.ExprStmt)
	return ok && (strings.HasSuffix(text(e), ".Lock()") || strings.HasSuffix(text(e), ".RLock()"))
}

// moves reports whether a statement can change places with the next: it declares nothing.
func moves(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.AssignStmt:
		return s.Tok != token.DEFINE
	case *ast.ExprStmt:
		return true
	}
	return false
}

// matters reports whether it matters to the second statement that the first has run: it may have
// effects, or changes what the second names.
func matters(first, second ast.Stmt, text func(ast.Node) string) bool {
	assign, ok := first.(*ast.AssignStmt)
	return !ok || slices.ContainsFunc(assign.Lhs, func(e ast.Expr) bool { return strings.Contains(text(second), text(e)) })
}

// draw puts the sites into an order by a seed: of each kind one in turn, so that the rare are
// among the first.
func draw(all []site, seed uint64) (out []site) {
	kinds := make(map[string][]site)
	for _, s := range all {
		kinds[s.kind] = append(kinds[s.kind], s)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	names := slices.Sorted(maps.Keys(kinds))
	for _, kind := range names {
		random.Shuffle(len(kinds[kind]), func(i, k int) { kinds[kind][i], kinds[kind][k] = kinds[kind][k], kinds[kind][i] })
	}
	for len(out) < len(all) {
		for _, kind := range names {
			if len(kinds[kind]) > 0 {
				out, kinds[kind] = append(out, kinds[kind][0]), kinds[kind][1:]
			}
		}
	}
	return out
}

// share is the least part of the mutants, in per cent, that has to be found, without those
// that change nothing.
const share = 95

// generate tries so many mutants of the core, of those whose name matches, and prints those that
// nothing finds.
func generate(ctx context.Context, dir string, count, seeds int, seed uint64, chosen *regexp.Regexp) error {
	all, err := sites(filepath.Join("..", ".."))
	if err != nil {
		return err
	}
	tried, found, equal, broken := 0, 0, 0, 0
	for _, s := range draw(all, seed) {
		if tried+equal == count {
			break
		}
		if !chosen.MatchString(s.String()) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if reason, ok := equivalent[s.String()]; ok {
			equal++
			fmt.Printf("%-10s equivalent: %s (%s)\n", s.kind, s, reason)
			continue
		}
		start := time.Now()
		by, err := s.find(ctx, dir, seeds)
		if errors.Is(err, errDoesNotCompile) {
			broken++
			continue
		}
		if err != nil {
			return err
		}
		tried++
		if by == "" {
			fmt.Printf("%-10s NOT FOUND: %s:%d: %s\n", s.kind, s.file, s.line, s)
			continue
		}
		found++
		fmt.Printf("%-10s %s (%s): %s\n", s.kind, by, time.Since(start).Round(time.Second), s)
	}
	if tried == 0 {
		return nil
	}
	percent := 100 * found / tried
	fmt.Printf("result: generated mutants=%d found=%d equivalent=%d share=%d%% (%d more did not compile)\n", tried+equal, found, equal, percent, broken)
	if percent < share {
		return fmt.Errorf("%d%% of the generated mutants are found, want %d%%", percent, share)
	}
	return nil
}

var errDoesNotCompile = errors.New("does not compile")

// find puts the fault in and says what has found it: the tests of its package, those of others,
// or the simulation; "" for none.
func (s site) find(ctx context.Context, dir string, seeds int) (by string, err error) {
	path, err := filepath.Abs(filepath.Join("..", "..", s.file))
	if err != nil {
		return "", err
	}
	overlay, err := overlay(dir, path, s.content())
	if err != nil {
		return "", err
	}
	own := filepath.Dir(s.file)
	for _, packages := range [][]string{{own}, slices.DeleteFunc(slices.Clone(near), func(name string) bool { return name == own })} {
		failed, err := s.failing(ctx, overlay, packages)
		if failed != "" || err != nil {
			return failed, err
		}
	}
	binary, err := build(ctx, dir, overlay)
	if err != nil {
		return "", err
	}
	broken, err := search(ctx, binary, seeds)
	if err != nil && broken == (violation{}) && strings.Contains(err.Error(), "break no invariant") {
		return "", nil
	}
	return cmp.Or(broken.invariant, "the simulation ends"), nil
}

// failing runs the tests of packages, and returns the first that fails.
func (s site) failing(ctx context.Context, overlay string, packages []string) (string, error) {
	args := []string{"test", "-vet=off", "-failfast", "-timeout", "5m", "-overlay", overlay}
	if s.kind == lock || s.kind == order && strings.HasPrefix(s.file, "pkg/core/cache/") { // what is not guarded may be seen half done
		args = append(args, "-race")
	}
	for _, name := range packages {
		args = append(args, "./"+name)
	}
	test := exec.CommandContext(ctx, "go", args...)
	test.Dir = filepath.Join("..", "..")
	out, err := test.CombinedOutput()
	if err == nil {
		return "", nil
	}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasSuffix(line, "[build failed]"), strings.HasSuffix(line, "[setup failed]"):
			return "", errDoesNotCompile
		case strings.HasPrefix(line, "--- FAIL: "):
			return strings.Fields(line)[2], nil
		case strings.HasPrefix(line, "FAIL\t"):
			return strings.Fields(line)[1] + " ends", nil
		}
	}
	return "", fmt.Errorf("%w\n%s", err, out)
}
