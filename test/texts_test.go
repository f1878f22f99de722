package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Fields and methods of the programs, and of Kubernetes' objects, that hold words for people.
// They go by their names here: what is kept under another name first is not found.
var (
	textFields  = []string{"Fix", "Message", "Object", "Problem", "Unhealthy", "Unserved", "Weaker", "WhyUnknown", "Wrong"}
	textMethods = []string{"Error", "Why"}
	takeApart   = []string{
		"Contains", "Cut", "CutPrefix", "CutSuffix", "EqualFold", "Fields", "FieldsFunc", "FieldsFuncSeq", "FieldsSeq", "HasPrefix", "HasSuffix",
		"Index", "LastIndex", "Split", "SplitN", "SplitSeq", "TrimPrefix", "TrimSuffix",
	}
)

// textsRead returns the expressions in which a program takes a text for people apart, or compares
// it with a constant that is not empty. That two texts differ it may ask, to say nothing twice.
func textsRead(n ast.Node, constants map[string]bool) (found []string) {
	constant := func(e ast.Expr) bool {
		if s, ok := literal(e); ok {
			return s != ""
		}
		return constants[nameOf(e)]
	}
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if (n.Op == token.EQL || n.Op == token.NEQ) && (isText(n.X) && constant(n.Y) || isText(n.Y) && constant(n.X)) {
			found = append(found, types.ExprString(n))
		}
	case *ast.SwitchStmt:
		for _, c := range n.Body.List {
			if c := c.(*ast.CaseClause); isText(n.Tag) && slices.ContainsFunc(c.List, constant) {
				found = append(found, "switch "+types.ExprString(n.Tag))
			}
		}
	case *ast.CallExpr:
		method, ok := n.Fun.(*ast.SelectorExpr)
		if ok && nameOf(method.X) == "strings" && slices.Contains(takeApart, method.Sel.Name) && len(n.Args) > 0 && isText(n.Args[0]) {
			found = append(found, types.ExprString(n))
		}
	}
	return found
}

func isText(e ast.Expr) bool {
	if call, ok := e.(*ast.CallExpr); ok {
		if from, ok := call.Fun.(*ast.SelectorExpr); ok && nameOf(from.X) == "reasons" {
			return true
		}
		return len(call.Args) == 0 && slices.Contains(textMethods, nameOf(call.Fun))
	}
	s, ok := e.(*ast.SelectorExpr)
	return ok && slices.Contains(textFields, s.Sel.Name)
}

func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	default:
		return ""
	}
}

// constantsIn adds the names of constants that are declared there.
func constantsIn(n ast.Node, names map[string]bool) {
	if decl, ok := n.(*ast.GenDecl); ok && decl.Tok == token.CONST {
		for _, spec := range decl.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				names[name.Name] = true
			}
		}
	}
}

// oldForm is read by the border of one version to the one before.
const oldForm = "j.Unhealthy == stoppedBefore"

// kindAndName is no sentence: the object of a finding is its kind, and its name where it has one.
const kindAndName = `strings.Cut(f.Object, " ")`

// whoPreempts is text of kube-scheduler that says nowhere else which pod it evicts another for.
const whoPreempts = `strings.HasPrefix(e.Message, "Preempted by pod " + string(pod.UID) + " ")`

func TestNoProgramReadsTextForPeople(t *testing.T) {
	constants := make(map[string]bool)
	inspectCode(t, func(n ast.Node) { constantsIn(n, constants) })
	var found []string
	inspectCode(t, func(n ast.Node) { found = append(found, textsRead(n, constants)...) })
	if diff := cmp.Diff([]string{whoPreempts, oldForm, kindAndName}, found); diff != "" {
		t.Errorf("compare values, and make words of them (-want +got):\n%s", diff)
	}
}

// What was there, and what may be.
func TestTextsThatAreRead(t *testing.T) {
	for source, want := range map[string]bool{
		`d.Unhealthy == gpu.Cordoned`:                          true,
		`"cordoned" != d.Unhealthy`:                            true,
		`err.Error() == "not found"`:                           true,
		`strings.HasSuffix(reasons.Causes(s), "; cordoned")`:   true,
		`strings.Cut(c.Message, " ")`:                          true,
		`strings.CutPrefix(p.Object, "pod ")`:                  true,
		`func() { switch g.Unhealthy { case gpu.Cordoned: } }`: true,
		`d.Unhealthy == ""`:                                    false,
		`err.Error() != said`:                                  false,
		`has.Message == want.Message`:                          false,
		`c.Reason == v1.PodReasonUnschedulable`:                false,
		`strings.Cut(string(resource), "/")`:                   false,
	} {
		expr, err := parser.ParseExpr(source)
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		ast.Inspect(expr, func(n ast.Node) bool {
			found = append(found, textsRead(n, map[string]bool{"Cordoned": true})...)
			return true
		})
		if (len(found) > 0) != want {
			t.Errorf("%s: found %q, want any: %t", source, found, want)
		}
	}
}
