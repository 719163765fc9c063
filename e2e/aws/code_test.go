package aws

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// root of the project.
var root = filepath.Join("..", "..")

// packageFiles are the parsed files of a package without its tests; none where there is
// no such package.
func packageFiles(t *testing.T, dir string) []*ast.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// handled are the kinds of message that package queue parses, by detail-type, with the
// source that it demands: the entries of its table formats.
func handled(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, f := range packageFiles(t, "queue") {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Names) != 1 || spec.Names[0].Name != "formats" || len(spec.Values) != 1 {
				return true
			}
			for _, e := range spec.Values[0].(*ast.CompositeLit).Elts {
				entry := e.(*ast.KeyValueExpr)
				found[literal(t, entry.Key)] = literal(t, sourceOf(entry.Value))
			}
			return false
		})
	}
	if len(found) == 0 {
		t.Fatal("package queue has no table formats any more: what else says which kinds it parses?")
	}
	return found
}

// sourceOf is the field source of a format, which is the first.
func sourceOf(e ast.Expr) ast.Expr {
	fields := e.(*ast.CompositeLit).Elts
	for _, f := range fields {
		if named, ok := f.(*ast.KeyValueExpr); ok && named.Key.(*ast.Ident).Name == "source" {
			return named.Value
		}
	}
	return fields[0]
}

func literal(t *testing.T, e ast.Expr) string {
	t.Helper()
	lit, ok := e.(*ast.BasicLit)
	if !ok {
		t.Fatalf("%T is not a literal", e)
	}
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// durationOf is the value of a constant of package queue that is a time.Duration.
func durationOf(t *testing.T, name string) time.Duration {
	t.Helper()
	for _, f := range packageFiles(t, "queue") {
		for _, decl := range f.Decls {
			g, ok := decl.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, s := range g.Specs {
				spec := s.(*ast.ValueSpec)
				if i := slices.IndexFunc(spec.Names, func(id *ast.Ident) bool { return id.Name == name }); i >= 0 {
					return evalDuration(t, spec.Values[i])
				}
			}
		}
	}
	t.Fatalf("package queue has no constant %s any more", name)
	return 0
}

// evalDuration works out an expression such as 30 * time.Second.
func evalDuration(t *testing.T, e ast.Expr) time.Duration {
	t.Helper()
	pkg := types.NewPackage("queue", "queue")
	units := types.NewPackage("time", "time")
	for name, unit := range map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour} {
		units.Scope().Insert(types.NewConst(token.NoPos, units, name, types.Typ[types.UntypedInt], constant.MakeInt64(int64(unit))))
	}
	units.MarkComplete()
	pkg.Scope().Insert(types.NewPkgName(token.NoPos, pkg, "time", units))
	value, err := types.Eval(token.NewFileSet(), pkg, token.NoPos, types.ExprString(e))
	if err != nil {
		t.Fatal(err)
	}
	n, _ := constant.Int64Val(value.Value)
	return time.Duration(n)
}

// sdk is where the AWS clients are.
const sdk = "github.com/aws/aws-sdk-go-v2/service/"

// called are the IAM actions of the AWS operations that a package calls, each once.
//
// With the SDK's clients every operation's input is a struct of its own, named after it.
// What the package is given to call, as interfaces or functions, has to be the same; an operation that
// is only offered is not needed. A package that makes no such struct calls nothing: it only passes on
// what others call.
func called(t *testing.T, dir string) []string {
	t.Helper()
	var calls, offers []string
	for _, f := range packageFiles(t, dir) {
		services := map[string]string{} // by the name in this file
		for _, i := range f.Imports {
			if service, ok := strings.CutPrefix(literal(t, i.Path), sdk); ok && !strings.Contains(service, "/") {
				name := service
				if i.Name != nil {
					name = i.Name.Name
				}
				services[name] = service
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				calls = append(calls, action(services, n.Type)...)
			case *ast.InterfaceType, *ast.StructType: // of an options struct, the functions that it is given
				ast.Inspect(n, func(n ast.Node) bool {
					if f, ok := n.(*ast.FuncType); ok {
						for _, param := range f.Params.List {
							if pointer, ok := param.Type.(*ast.StarExpr); ok {
								offers = append(offers, action(services, pointer.X)...)
							}
						}
					}
					return true
				})
			}
			return true
		})
	}
	calls, offers = unique(calls), unique(offers)
	if len(calls) > 0 && !slices.Equal(calls, offers) {
		t.Errorf("package %s calls %v, it is given %v", dir, calls, offers)
	}
	return calls
}

func unique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// action is the IAM action for an operation's input type, such as sqs.ReceiveMessageInput.
func action(services map[string]string, e ast.Expr) []string {
	selector, ok := e.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	pkg, ok := selector.X.(*ast.Ident)
	if !ok || services[pkg.Name] == "" {
		return nil
	}
	operation, ok := strings.CutSuffix(selector.Sel.Name, "Input")
	if !ok {
		return nil
	}
	if services[pkg.Name] == "sqs" {
		// SQS has no actions for its batch calls: those for single messages are asked for.
		// https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-api-permissions-reference.html
		operation = strings.TrimSuffix(operation, "Batch")
	}
	return []string{services[pkg.Name] + ":" + operation}
}

// callers are the packages of the daemon that call AWS through a client.
func callers(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		name := d.Name()
		if name == "e2e" || name == "testdata" || (strings.HasPrefix(name, ".") && path != root) {
			return fs.SkipDir
		}
		dir, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if len(called(t, dir)) > 0 {
			found = append(found, filepath.ToSlash(dir))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
