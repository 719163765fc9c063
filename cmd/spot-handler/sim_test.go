package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/rs/zerolog"
	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"spot-handler/e2e/sim"
	"spot-handler/e2e/sim/memapi"
	"spot-handler/imds"
)

// What a round of the simulator is given in the environment, see the Makefile.
const (
	simSeed    = "SIM_SEED"
	simRounds  = "SIM_ROUNDS"
	simMinutes = "SIM_MINUTES"
	simLog     = "SIM_LOG"
	simAgain   = "SIM_AGAIN"
)

const simQueue = "https://sqs.eu-west-1.amazonaws.com/123456789012/spot-handler"

// TestSim plays the daemon in virtual time: two replicas, put together as serve does it, in a cluster that is
// simulated, with nodes that EC2 takes and all that can go wrong. By itself it plays a few rounds, always the same;
// with SIM_ROUNDS or SIM_MINUTES as many as asked for, from SIM_SEED or from a seed that it draws and prints.
func TestSim(t *testing.T) {
	p := newPlayer(t)
	rounds, minutes := number(t, simRounds, 0), number(t, simMinutes, 0)
	again := number(t, simAgain, 0)
	standard := rand.Uint64N(1 << 32)
	if rounds+minutes == 0 { // as one of the unit tests, which are to be the same each time
		standard, rounds, again = 1, 8, 3
	}
	seed, until := number(t, simSeed, standard), time.Time{}
	if minutes > 0 {
		until, rounds = time.Now().Add(time.Duration(minutes)*time.Minute), 1<<40
	}
	began, lost := time.Now(), 0
	played, printed := uint64(0), false
	for ; played < rounds && (until.IsZero() || time.Now().Before(until)); played++ {
		scene := sim.DrawScene(seed + played)
		lost += len(scene.Losses)
		broken, trace := p.play(scene)
		// Go chooses the order of goroutines: what breaks once need not break again. Where that's asked for, only what
		// breaks each time fails the test, and the rest is shown.
		for n := again; len(broken) > 0 && n > 0; n-- {
			t.Logf("seed %d breaks, and is played again:\n  %s", scene.Seed, strings.Join(broken, "\n  "))
			broken, trace = p.play(scene)
		}
		if len(broken) > 0 {
			t.Errorf("seed %d breaks:\n  %s", scene.Seed, strings.Join(broken, "\n  "))
			if !printed {
				printed = true
				t.Logf("%+v\n%s", scene, trace)
				t.Logf("a test of a smaller scene that breaks as well:\n%s", p.shrink(scene, broken).AsTest())
			}
		}
	}
	took := time.Since(began)
	t.Logf("%d rounds from seed %d in %s: %d nodes interrupted, %.0f a minute",
		played, seed, took.Round(time.Second/10), lost, float64(lost)/took.Minutes())
}

// keepsInvariants plays a scene that has once broken an invariant, several times: Go chooses the order of
// goroutines.
func keepsInvariants(t *testing.T, scene sim.Scene) {
	t.Helper()
	p := newPlayer(t)
	for range 5 {
		if broken, trace := p.play(scene); len(broken) > 0 {
			t.Fatalf("%s\n%s", strings.Join(broken, "\n"), trace)
		}
	}
}

// player plays scenes, one after the other.
type player struct {
	t     *testing.T
	conf  aws.Config
	level zerolog.Level
	// account, if set, records what becomes of the pods and nodes.
	account *sim.Account
}

func newPlayer(t *testing.T) player {
	t.Helper()
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "eu-west-1"} {
		t.Setenv(name, value)
	}
	conf, err := configOf(t.Context(), settings{mode: modeQueue, queueURL: simQueue})
	if err != nil {
		t.Fatal(err)
	}
	level, err := zerolog.ParseLevel(os.Getenv(simLog))
	if err != nil || os.Getenv(simLog) == "" {
		level = zerolog.InfoLevel
	}
	// One of them sleeps, with a lock, until a time that it has read in another bubble.
	handlers := utilruntime.ErrorHandlers
	utilruntime.ErrorHandlers = []utilruntime.ErrorHandler{func(context.Context, error, string, ...any) {}}
	t.Cleanup(func() { utilruntime.ErrorHandlers = handlers })

	// Rounds are short and run on one processor: another process plays others on the next one.
	processors, percent := runtime.GOMAXPROCS(1), debug.SetGCPercent(1000)
	t.Cleanup(func() { runtime.GOMAXPROCS(processors); debug.SetGCPercent(percent) })
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	t.Cleanup(klog.ClearLogger)
	return player{t, conf, level, nil}
}

// shrinksFor bounds how long a scene is made smaller.
const shrinksFor = 5 * time.Minute

// shrink makes a scene smaller that has broken invariants, as long as it breaks the first of them again.
func (p player) shrink(scene sim.Scene, broken []string) sim.Scene {
	_, text, _ := strings.Cut(broken[0], " ") // after the time
	invariant, _, _ := strings.Cut(text, ":")
	until := time.Now().Add(shrinksFor)
	return sim.Shrink(scene, func(smaller sim.Scene) bool {
		for range 2 {
			if time.Now().After(until) {
				return false
			}
			again, _ := p.play(smaller)
			if slices.ContainsFunc(again, func(b string) bool { return strings.Contains(b, invariant) }) {
				return true
			}
		}
		return false
	})
}

func number(t *testing.T, name string, standard uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return standard
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// How long a round goes on if something doesn't end, and how long it waits for what goes on by itself.
const (
	longestRound = 30 * time.Minute
	calmsDown    = 5 * time.Minute
)

// play plays a scene and returns how it has broken invariants, and what happened.
func (p player) play(scene sim.Scene) (broken []string, trace string) {
	cryptotest.SetGlobalRandom(p.t, scene.Seed)
	synctest.Test(p.t, func(t *testing.T) {
		world := sim.New(scene)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if p.account != nil {
			world.Follow(p.account)
		}
		go world.Run(ctx)
		p.start(t, world)
		asking, stopAsking := context.WithCancel(ctx)
		go asks(asking, world)
		memory := memoryOf{world: world, began: time.Now()}
		for began := time.Now(); time.Since(began) < longestRound; {
			time.Sleep(5 * time.Second)
			memory.look()
			if world.Settled() {
				break
			}
		}
		stopAsking()
		world.Finish()
		memory.finish()
		world.End()
		time.Sleep(calmsDown)
		if broken = world.Broken(); len(broken) > 0 {
			trace = world.Trace()
		}
	})
	return broken, trace
}

// start has the world start the daemon's processes.
func (p player) start(t *testing.T, world *sim.World) {
	world.Start(func(l sim.Launch) sim.Process {
		own := p.conf.Copy()
		own.HTTPClient = l.AWS
		return startProcess(t, world, l, own, p.level)
	})
}

// simProcess is a process of the daemon.
type simProcess struct{ stop context.CancelFunc }

func (p simProcess) Stop() { p.stop() }
func (p simProcess) Kill() { p.stop() } // nothing that it does reaches anybody any more

func startProcess(t *testing.T, world *sim.World, l sim.Launch, conf aws.Config, level zerolog.Level) sim.Process {
	cfg, client := settings{mode: l.Mode}, l.Client
	flags := pflag.NewFlagSet("sim", pflag.ContinueOnError)
	for _, g := range cfg.define() {
		flags.AddFlagSet(g.FlagSet)
	}
	args := append([]string{"--pod-namespace=" + sim.Namespace, "--pod-name=" + client.Name}, world.Scene.Flags...)
	switch l.Mode {
	case modeQueue:
		args = append(args, "--queue-url="+simQueue)
	case modeIMDS:
		args = []string{"--node-name=" + l.Node, "--drain=false"}
		for _, flag := range world.Scene.Flags {
			if strings.HasPrefix(flag, "--rebalance=") || strings.HasPrefix(flag, "--scheduled-lead=") {
				args = append(args, flag)
			}
		}
	}
	problems, _ := parse(flags, args, func(string) string { return "" })
	if problems = append(problems, cfg.check()...); len(problems) > 0 {
		panic(fmt.Sprint(problems))
	}
	ctx, stop := context.WithCancel(t.Context())
	in := surroundings{
		kube:   paced(simCluster(client), "spot-handler"),
		aws:    conf,
		listen: func() (net.Listener, error) { return &unheard{closed: make(chan struct{})}, nil },
	}
	if l.Mode == modeIMDS {
		in.metadata = imds.NewClientOver(conf, l.AWS)
	}
	logger := zerolog.New(world).Level(level).With().Str("process", client.Name).Logger()
	go func() {
		for {
			err := serveIn(ctx, cfg, in, logger)
			if ctx.Err() != nil {
				return
			}
			world.Logf("%s ends by itself: %v", client.Name, err)
			time.Sleep(10 * time.Second) // the kubelet starts it again
		}
	}()
	return simProcess{stop}
}

// simCluster is how a client reaches the simulated API server.
func simCluster(client *memapi.Client) *rest.Config {
	return &rest.Config{Host: "http://api.sim", Transport: client}
}

// unheard is a listener to which nobody connects.
type unheard struct {
	once   sync.Once
	closed chan struct{}
}

func (u *unheard) Accept() (net.Conn, error) {
	<-u.closed
	return nil, net.ErrClosed
}

func (u *unheard) Close() error {
	u.once.Do(func() { close(u.closed) })
	return nil
}

func (u *unheard) Addr() net.Addr { return &net.TCPAddr{} }

var (
	_ http.RoundTripper = (*memapi.Client)(nil)
	_ aws.HTTPClient    = sim.AWS{}
	_ io.Writer         = (*sim.World)(nil)
)
