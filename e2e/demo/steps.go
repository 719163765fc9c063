package main

import (
	"fmt"
	"io"
	"time"
)

// steps says what the demo is doing, if that may take long.
type steps struct {
	out   io.Writer
	begun time.Time
}

func (s steps) step(format string, args ...any) {
	fmt.Fprintf(s.out, "%7.1f s  %s\n", time.Since(s.begun).Seconds(), fmt.Sprintf(format, args...))
}
