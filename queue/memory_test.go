package queue

import "testing"

func TestMemoryForgetsTheOldest(t *testing.T) {
	m := newMemory(2)
	for _, step := range []struct {
		id  string
		new bool
	}{{"a", true}, {"a", false}, {"b", true}, {"c", true}, {"b", false}, {"a", true}, {"c", false}, {"b", true}} {
		if got := m.add(step.id); got != step.new {
			t.Errorf("add(%s) = %v", step.id, got)
		}
	}
}
