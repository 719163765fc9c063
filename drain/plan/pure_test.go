package plan

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// What is decided here depends on nothing but what it is given: no clock, no lock, no goroutine, no
// context, no client, no metric, no log. So a plan can be played in virtual time, as often as one likes.
func TestPure(t *testing.T) {
	allowed := []string{
		"k8s.io/api/", "k8s.io/apimachinery/pkg/", "k8s.io/component-helpers/resource", "k8s.io/utils/ptr",
		"k8s.io/klog/v2", // an argument of a function of k8s.io/api
		"spot-handler/handler/interruption",
	}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range file.Imports {
			name, _ := strconv.Unquote(spec.Path.Value)
			ok := fs.ValidPath(name) && !strings.Contains(strings.Split(name, "/")[0], ".") && !impure(name) && !strings.HasPrefix(name, "spot-handler/")
			for _, prefix := range allowed {
				ok = ok || strings.HasPrefix(name, prefix)
			}
			if !ok {
				t.Errorf("%s imports %s", path, name)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.ChanType, *ast.SelectStmt:
				t.Errorf("%s: a goroutine or a channel", fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				of, _ := n.X.(*ast.Ident)
				if of == nil || of.Obj != nil {
					break
				}
				switch of.Name + "." + n.Sel.Name {
				case "time.Now", "time.Since", "time.Until", "time.After", "time.AfterFunc", "time.Sleep", "time.NewTimer", "time.NewTicker", "metav1.Now":
					t.Errorf("%s: reads the clock", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// impure reports whether a package of the standard library does more than to compute.
func impure(name string) bool {
	switch strings.Split(name, "/")[0] {
	case "sync", "context", "os", "net", "log", "io", "runtime", "testing", "syscall":
		return true
	}
	return false
}
