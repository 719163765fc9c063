package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
)

// mutant is a file with one place of it changed.
type mutant struct {
	file       string
	line       int
	was        []byte // the whole file
	start, end int    // in it
	instead    string
}

func (m mutant) source() []byte {
	return fmt.Appendf(nil, "%s%s%s", m.was[:m.start], m.instead, m.was[m.end:])
}

// String has no line breaks.
func (m mutant) String() string {
	from := strings.Join(strings.Fields(string(m.was[m.start:m.end])), " ")
	if len(from) > 90 {
		from = from[:90] + "…"
	}
	return fmt.Sprintf("%s:%d  %s  →  %s", m.file, m.line, from, strings.Join(strings.Fields(m.instead), " "))
}

// Each operator becomes one that is near to it.
var near = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL,
}

// mutantsOf are all changes of a file that this program knows: another operator, the opposite of a condition,
// another number or truth value, a statement left out.
func mutantsOf(file string) ([]mutant, error) {
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, source, 0)
	if err != nil {
		return nil, err
	}
	var all []mutant
	add := func(pos, end token.Pos, instead string) {
		at := set.Position(pos)
		all = append(all, mutant{file: file, line: at.Line, was: source, start: at.Offset, end: set.Position(end).Offset, instead: instead})
	}
	ast.Inspect(parsed, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.BinaryExpr:
			if to, ok := near[n.Op]; ok {
				add(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), to.String())
			}
		case *ast.IfStmt:
			add(n.Cond.Pos(), n.Cond.End(), "!("+string(source[set.Position(n.Cond.Pos()).Offset:set.Position(n.Cond.End()).Offset])+")")
		case *ast.BasicLit:
			if n.Kind == token.INT {
				add(n.Pos(), n.End(), "("+n.Value+" + 1)")
			}
		case *ast.Ident:
			if opposite, ok := map[string]string{"true": "false", "false": "true"}[n.Name]; ok {
				add(n.Pos(), n.End(), opposite)
			}
		case *ast.BlockStmt:
			for _, s := range n.List {
				leaveOut(s, add)
			}
		case *ast.CaseClause:
			for _, s := range n.Body {
				leaveOut(s, add)
			}
		}
		return true
	})
	return all, nil
}

// leaveOut adds what is there without a statement, unless that only logs or is needed to compile.
func leaveOut(s ast.Stmt, add func(pos, end token.Pos, instead string)) {
	switch s := s.(type) {
	case *ast.ExprStmt:
		if call, ok := s.X.(*ast.CallExpr); ok && !logs(call) {
			add(s.Pos(), s.End(), "")
		}
	case *ast.AssignStmt:
		if s.Tok != token.DEFINE {
			add(s.Pos(), s.End(), "")
		}
	case *ast.BranchStmt, *ast.DeferStmt, *ast.GoStmt, *ast.IncDecStmt, *ast.SendStmt:
		add(s.Pos(), s.End(), "")
	}
}

// logs says whether a call is the last one of a line that the log gets.
func logs(call *ast.CallExpr) bool {
	method, ok := call.Fun.(*ast.SelectorExpr)
	return ok && (method.Sel.Name == "Msg" || method.Sel.Name == "Msgf" || method.Sel.Name == "Send")
}
