package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/stack"
)

// Config says where the attacks are tried.
type Config struct {
	Cluster *cluster.Cluster
	Stack   *stack.Stack
	// Own is set where the cluster serves nothing else: gpumem is then installed another way
	// for some of the attacks, and with these values of the chart for all.
	Own    bool
	Values []string
	Log    io.Writer // what is done; a line for each attack as it ends
}

// limit bounds one attack: it is there for what never comes.
const limit = 2 * time.Minute

// A Result is what came of an attack.
type Result struct {
	Name    string
	Blocked bool
	Seen    string
}

func (r Result) String() string {
	return fmt.Sprintf("%s  %s: %s", map[bool]string{true: "blocked", false: "broken "}[r.Blocked], r.Name, r.Seen)
}

// Results are those of a run.
type Results []Result

// OK reports whether attacks were tried and all of them were blocked.
func (r Results) OK() bool { return len(r) > 0 && r.blocked() == len(r) }

func (r Results) blocked() (n int) {
	for _, one := range r {
		if one.Blocked {
			n++
		}
	}
	return n
}

// String is the last line of a run.
func (r Results) String() string {
	return fmt.Sprintf("result: attack tried=%d blocked=%d", len(r), r.blocked())
}

// An attempt is one attack. It returns what was seen, and an error where it was not blocked
// or could not be tried.
type attempt struct {
	name string
	try  func(context.Context, *field) (seen string, err error)
}

// Run makes the scene, tries all attacks and takes the scene away.
func Run(ctx context.Context, config Config) (out Results, err error) {
	f, err := newField(ctx, config)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		err = errors.Join(err, f.close(ctx))
	}()
	if err != nil {
		return nil, fmt.Errorf("make the scene: %w", err)
	}
	attempts := append(append(append(writes(), tenants()...), pods()...), nodes()...)
	if config.Own {
		attempts = append(attempts, own()...)
	}
	for _, a := range append(attempts, attempt{"all of these together: what counts of pods is what it was", accounts}) {
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
		out = append(out, f.do(ctx, a))
		fmt.Fprintln(config.Log, out[len(out)-1])
	}
	return out, nil
}

func (f *field) do(ctx context.Context, a attempt) Result {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	seen, err := a.try(ctx, f)
	if err != nil {
		return Result{Name: a.name, Seen: oneLine(err.Error())}
	}
	return Result{Name: a.name, Blocked: true, Seen: oneLine(seen)}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
