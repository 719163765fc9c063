// Command mutants measures how much of the program its tests hold. It draws small changes of the
// source (mutants) at random, and runs the tests on each:
//
//	go run ./e2e/sim/mutants [-seed N] [-draw N] [-more DIRS] [-rounds N] [-timeout DURATION] DIR...
//
// For each DIR it draws that many mutants. The package's own tests run first; on what survives them, those of
// -more; and then so many rounds of the simulator. It prints what each mutant changed and which of these noticed
// it, and at the end a line for each DIR.
//
// The checkout stays as it is: mutants are overlays for the compiler. One that doesn't compile is drawn again. One
// whose tests don't end in time, or need more than 6 GiB of address space, counts as noticed.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	seed := flag.Uint64("seed", uint64(time.Now().Unix()), "`number` that the mutants are drawn from")
	draw := flag.Int("draw", 14, "`number` of mutants for each directory")
	more := flag.String("more", "", "`directories`, separated by commas, whose tests run on what survives")
	rounds := flag.Int("rounds", 0, "`number` of rounds of the simulator to play on what survives those, too")
	timeout := flag.Duration("timeout", 4*time.Minute, "`time` that the tests of one directory may take")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	t := tests{more: strings.FieldsFunc(*more, func(r rune) bool { return r == ',' }), rounds: *rounds, timeout: *timeout}
	var sums []string
	for _, dir := range flag.Args() {
		sum, err := t.measure(dir, *seed, *draw)
		if err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			os.Exit(1)
		}
		sums = append(sums, sum)
	}
	fmt.Println(strings.Join(sums, "\n"))
}

// tests are the ones that a mutant has to survive, in their order.
type tests struct {
	more    []string
	rounds  int
	timeout time.Duration
}

// measure draws mutants of a directory, prints what became of each, and returns a line of the sum.
func (t tests) measure(dir string, seed uint64, draw int) (string, error) {
	files, err := sources(dir)
	if err != nil {
		return "", err
	}
	var all []mutant
	for _, file := range files {
		of, err := mutantsOf(file)
		if err != nil {
			return "", err
		}
		all = append(all, of...)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	noticed := map[string]int{}
	done := 0
	for _, m := range all {
		if done == draw {
			break
		}
		by, err := t.run(dir, m)
		if err != nil {
			return "", err
		}
		if by == uncompiled {
			continue
		}
		done++
		noticed[by]++
		fmt.Printf("%-10s %s\n", by, m)
	}
	return fmt.Sprintf("== %s: of %d mutants drawn with seed %d, %d noticed by its own tests, %d by others, %d by the simulator, %d survived",
		dir, done, seed, noticed[own], noticed[others], noticed[simulator], noticed[nobody]), nil
}

// What noticed a mutant.
const (
	own        = "own"
	others     = "others"
	simulator  = "simulator"
	nobody     = "SURVIVED"
	uncompiled = ""
)

func (t tests) run(dir string, m mutant) (string, error) {
	temp, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	overlay, err := m.overlay(temp)
	if err != nil {
		return "", err
	}
	// These draw from time or play for minutes, and -rounds runs the first of them.
	const skip = "-skip=^(TestSim|TestScale|TestShrink)$"
	passed, output, err := t.goTest(overlay, nil, dir, skip)
	if bytes.Contains(output, []byte("[build failed]")) || bytes.Contains(output, []byte("[setup failed]")) {
		return uncompiled, nil
	}
	if err != nil || !passed {
		return own, err
	}
	for _, other := range t.more {
		if passed, _, err = t.goTest(overlay, nil, other, skip); err != nil || !passed {
			return others, err
		}
	}
	if t.rounds > 0 {
		env := []string{fmt.Sprint("SIM_ROUNDS=", t.rounds), "SIM_AGAIN=1"}
		if passed, _, err = t.goTest(overlay, env, "./cmd/spot-handler", "-run=^TestSim$"); err != nil || !passed {
			return simulator, err
		}
	}
	return nobody, nil
}

// goTest says whether the tests of a directory pass with the overlay. An error is of running them at all.
func (t tests) goTest(overlay string, env []string, dir string, which string) (bool, []byte, error) {
	timeout := t.timeout
	if env != nil {
		timeout = 24 * time.Hour
	}
	ctx, stop := context.WithTimeout(context.Background(), timeout)
	defer stop()
	// The shell sets the limit and becomes the go command, in a group that ends as a whole.
	test := exec.CommandContext(ctx, "sh", "-c", `ulimit -v 6291456; exec go test "$@"`, "sh",
		"-overlay="+overlay, "-vet=off", "-count=1", "-failfast", "-timeout="+timeout.String(), which, "./"+filepath.Clean(dir))
	test.Env = append(os.Environ(), env...)
	test.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	test.Cancel = func() error { return syscall.Kill(-test.Process.Pid, syscall.SIGKILL) }
	test.WaitDelay = time.Second
	output, err := test.CombinedOutput()
	if test.ProcessState == nil {
		return false, output, err
	}
	return err == nil, output, nil
}

// sources are the files of a directory that the program is made of.
func sources(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	files = slices.DeleteFunc(files, func(file string) bool {
		return strings.HasSuffix(file, "_test.go") || filepath.Base(file) == "doc.go"
	})
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no source", dir)
	}
	return files, nil
}

// overlay writes the changed file and what the go command has to be told of it, and returns the latter's name.
func (m mutant) overlay(temp string) (string, error) {
	original, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	changed := filepath.Join(temp, filepath.Base(m.file))
	if err := os.WriteFile(changed, m.source(), 0o600); err != nil {
		return "", err
	}
	told, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return "", err
	}
	name := filepath.Join(temp, "overlay.json")
	return name, os.WriteFile(name, told, 0o600)
}
