package main

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// fewSeeds is the most seeds that look for a generated fault: most faults that no test finds change
// nothing.
const fewSeeds = 400

// share is the least percentage of the generated faults that the tests have to find.
const share = 95

// equivalent has generated mutants that behave like the original, and the reasons.
var equivalent = map[string]string{
	"pkg/core/ranking/prices.go cpuRatios: if pods += mix.seen[k]; k.cpu > 0 { => if pods += mix.seen[k]; k.cpu >= 0 {":                                                                                                                       "the ratio of a pod without CPU is infinite, so no node has a higher one",
	"pkg/core/gpu/gpu.go UnitsIn: if unitMiB <= 0 || usable <= 0 { => if unitMiB <= 0 || usable < 0 {":                                                                                                                                        "no memory has no units in either case",
	"pkg/core/decide/nominate.go Reserved: if h.Request.Priority < req.Priority || i == ahead || i > ahead && !apart(own, h.Assignment) { => if h.Request.Priority < req.Priority || i == ahead || i >= ahead && !apart(own, h.Assignment) {": "the operand before it is true where they are equal",
}

// operators are the operators that the generator replaces, and their replacements.
var operators = map[token.Token]string{
	token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">",
	token.EQL: "!=", token.NEQ: "==", token.LAND: "||", token.LOR: "&&",
}

// sites returns all faults that can be generated in the packages.
func sites(ctx context.Context, packages []string) (out []mutant, err error) {
	files, err := list(ctx, `{{$dir := .Dir}}{{range .GoFiles}}{{$dir}}/{{.}}{{"\n"}}{{end}}`, packages...)
	if err != nil {
		return nil, err
	}
	absolute, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	for path := range strings.FieldsSeq(files) {
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		file, err := filepath.Rel(absolute, path)
		if err != nil {
			return nil, err
		}
		found, err := sitesOf(file, source)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// list returns what go list prints of the packages.
func list(ctx context.Context, format string, packages ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-f", format}, packages...)...)
	cmd.Dir = root
	out, err := cmd.Output()
	return string(out), err
}

// sitesOf returns the faults of one file: another operator, an ignored error, swapped operands of a
// comparison function, a lock that is not taken, and a call or an assignment that is left out.
func sitesOf(name string, source []byte) (out []mutant, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	at := func(p token.Pos) int { return set.Position(p).Offset }
	text := func(n ast.Node) string { return string(source[at(n.Pos()):at(n.End())]) }
	var function string
	add := func(start, end token.Pos, replacement string) {
		out = append(out, newMutant(name, function, source, at(start), at(end), replacement))
	}
	visit := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			switch other, ok := operators[n.Op]; {
			case n.Op == token.NEQ && text(n.Y) == "nil" && strings.HasSuffix(strings.ToLower(text(n.X)), "err"):
				add(n.Pos(), n.End(), "false && "+text(n))
			case ok:
				add(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), other)
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(f.Sel.Name, "Compare") && len(n.Args) == 2 {
				add(n.Args[0].Pos(), n.Args[1].End(), text(n.Args[1])+", "+text(n.Args[0]))
			}
		case *ast.BlockStmt:
			for i, s := range n.List {
				switch assign, ok := s.(*ast.AssignStmt); {
				case ok && assign.Tok == token.ASSIGN || isCall(s) && !takesLock(text(s)):
					add(s.Pos(), s.End(), "")
				case takesLock(text(s)) && i+1 < len(n.List):
					add(s.Pos(), n.List[i+1].End(), "") // with the deferred Unlock
				}
			}
		}
		return true
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			function = f.Name.Name
			ast.Inspect(f.Body, visit)
		}
	}
	return out, nil
}

func isCall(s ast.Stmt) bool {
	_, ok := s.(*ast.ExprStmt)
	return ok
}

func takesLock(statement string) bool {
	return strings.HasSuffix(statement, ".Lock()") || strings.HasSuffix(statement, ".RLock()")
}

// newMutant replaces source[start:end]. The mutant's name has no line number, so that it lasts as
// long as the function has these lines.
func newMutant(file, function string, source []byte, start, end int, replacement string) mutant {
	from := strings.LastIndexByte(string(source[:start]), '\n') + 1
	to := end + strings.IndexByte(string(source[end:]), '\n')
	brief := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	return mutant{
		name: fmt.Sprintf("%s %s: %s => %s", file, function, brief(string(source[from:to])),
			brief(string(source[from:start])+replacement+string(source[end:to]))),
		file:    file,
		content: slices.Concat(source[:start], []byte(replacement), source[end:]),
	}
}

func tryGenerated(ctx context.Context, dir string, count, seeds int, seed uint64, packages []string, chosen *regexp.Regexp) error {
	all, err := sites(ctx, packages)
	if err != nil {
		return err
	}
	fmt.Printf("generated faults: seed=%d packages=%q, %d possible\n", seed, packages, len(all))
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	tried, found := 0, 0
	for _, m := range all {
		switch {
		case tried == count:
		case ctx.Err() != nil:
			return ctx.Err()
		case !chosen.MatchString(m.name) || equivalent[m.name] != "":
			continue
		default:
			start := time.Now()
			by, err := m.search(ctx, dir, seeds)
			if errors.Is(err, errDoesNotCompile) {
				continue
			}
			if tried++; errors.Is(err, errNoViolation) {
				fmt.Printf("NOT FOUND: %s\n", m.name)
				continue
			}
			if err != nil {
				return err
			}
			found++
			fmt.Printf("%s (%s): %s\n", by, time.Since(start).Round(time.Second), m.name)
		}
	}
	fmt.Printf("result: generated faults %d, found %d (seed %d)\n", tried, found, seed)
	if 100*found < share*tried {
		return fmt.Errorf("the tests find %d of %d generated faults, want %d %%", found, tried, share)
	}
	return nil
}

var errDoesNotCompile = errors.New("does not compile")

// search returns what finds a generated fault: the tests of its package, the tests of packages that
// import it, or the simulation.
func (m mutant) search(ctx context.Context, dir string, seeds int) (by string, err error) {
	overlay, err := m.overlay(dir)
	if err != nil {
		return "", err
	}
	own := "github.com/gpumem/gpumem/" + filepath.Dir(m.file)
	importers, err := importersOf(ctx, own)
	if err != nil {
		return "", err
	}
	for _, packages := range [][]string{{own}, importers} {
		if len(packages) == 0 {
			continue
		}
		if failed, err := m.failing(ctx, overlay, packages...); failed != "" || err != nil {
			return failed, err
		}
	}
	return simulate(ctx, dir, overlay, seeds)
}

// importersOf returns the packages that import a package themselves or in their tests.
func importersOf(ctx context.Context, name string) (out []string, err error) {
	all, err := list(ctx, `{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}`, "./...")
	for line := range strings.Lines(all) {
		if fields := strings.Fields(line); fields[0] != name && slices.Contains(fields[1:], name) {
			out = append(out, fields[0])
		}
	}
	return out, err
}

// failing runs the tests of packages, and returns the first that fails. It passes on flags of go test.
func (m mutant) failing(ctx context.Context, overlay string, packages ...string) (string, error) {
	args := []string{"test", "-vet=off", "-failfast", "-timeout", "5m", "-overlay", overlay}
	if strings.Contains(m.name, "Lock()") {
		args = append(args, "-race")
	}
	test := exec.CommandContext(ctx, "go", append(args, packages...)...)
	test.Dir = root
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
