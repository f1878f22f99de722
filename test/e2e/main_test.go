package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/stack"
)

// suite is the cluster that the tests share; nil when this machine cannot run
// one, and then why says so.
var suite struct {
	cluster *cluster.Cluster
	stack   *stack.Stack
	notes   string
	why     string
}

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if testing.Short() {
		suite.why = "the tests on a real cluster are left out with -short"
		return m.Run(), nil
	}
	if err := cluster.CheckHost(); err != nil {
		suite.why = "no real cluster on this machine: " + err.Error()
		fmt.Fprintln(os.Stderr, suite.why)
		return m.Run(), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Minute)
	defer cancel()
	log := &progress{out: os.Stderr, start: time.Now()}
	defer func() {
		if suite.cluster == nil {
			return
		}
		if code != 0 {
			saveLogs(log)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err = errors.Join(err, suite.cluster.Stop(ctx))
	}()
	if err := start(ctx, log); err != nil {
		return 1, err
	}
	fmt.Fprintln(log, "the cluster is ready for the tests")
	return m.Run(), nil
}

func start(ctx context.Context, log io.Writer) error {
	cache, err := cluster.DefaultCacheDir()
	if err != nil {
		return err
	}
	if suite.stack, err = stack.Build(ctx, filepath.Join(cache, "e2e"), log); err != nil {
		return err
	}
	config := cluster.Config{Name: "e2e", Log: log, SchedulerConfig: []byte(gpushareSchedulerConfig)}
	if config.Nodes, err = stack.TwoNodes(); err != nil {
		return err
	}
	if suite.cluster, err = cluster.Start(ctx, config); err != nil {
		return err
	}
	if err := suite.stack.LoadImages(ctx, suite.cluster); err != nil {
		return err
	}
	// A GPU that has failed is back after three good probes.
	suite.notes, err = suite.stack.Install(ctx, suite.cluster, "devicePlugin.extraArgs={--probe-interval=1s}")
	return err
}

// saveLogs keeps the logs of the cluster's processes of a failed run, which go
// with the cluster.
func saveLogs(log io.Writer) {
	dir, err := os.MkdirTemp("", "gpumem-e2e-logs-")
	if err != nil {
		fmt.Fprintln(log, "keep the logs:", err)
		return
	}
	for _, name := range suite.cluster.Processes() {
		text, err := os.ReadFile(suite.cluster.LogFile(name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name+".log"), text, 0o600)
		}
		if err != nil {
			fmt.Fprintln(log, "keep the logs:", err)
		}
	}
	for _, selector := range []string{"app.kubernetes.io/component=scheduler", "app.kubernetes.io/component=device-plugin"} {
		text, err := suite.stack.Kubectl(context.Background(), suite.cluster, "logs", "--namespace", stack.Namespace, "--selector", selector, "--all-containers", "--prefix", "--tail=-1")
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, strings.ReplaceAll(selector, "/", "_")+".log"), []byte(text), 0o600)
		}
		if err != nil {
			fmt.Fprintln(log, "keep the logs:", err)
		}
	}
	fmt.Fprintln(log, "the logs of the failed run are in", dir)
}

// progress puts the time since the start before each line.
type progress struct {
	out   io.Writer
	start time.Time
}

func (p *progress) Write(text []byte) (int, error) {
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Fprintf(p.out, "[%3.0fs] %s", time.Since(p.start).Seconds(), line); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}
