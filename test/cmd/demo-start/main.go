// Command demo-start builds gpumem-demo and runs it. It imports the standard library only, so that
// Go compiles it in seconds and a person sees progress from the start.
//
//	demo-start --since SECONDS OUTPUT [FLAG OF gpumem-demo]...
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/gpumem/gpumem/test/cmd/internal/command"
	"github.com/gpumem/gpumem/test/cmd/internal/demo"
	"github.com/gpumem/gpumem/test/progress"
)

func main() { command.Main("demo-start", run) }

func run(ctx context.Context, args []string, _, stderr io.Writer) error {
	flags := flag.NewFlagSet("demo-start", flag.ContinueOnError)
	flags.SetOutput(stderr)
	since := flags.Int64("since", time.Now().Unix(), "when the demo began, in seconds since 1970")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("want the file of the program to build")
	}
	program, err := filepath.Abs(flags.Arg(0))
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("make demo needs root: it creates namespaces, mounts and control groups")
	}
	log := progress.NewWriter(stderr, time.Unix(*since, 0))
	fmt.Fprintf(log, "The demo takes about 7 minutes the first time on two idle cores, and less than a minute after that. This machine has %d.\n", runtime.NumCPU())
	steps := progress.Steps{Out: log, Total: demo.Steps}
	steps.Next("Build the demo (1 min the first time)")
	build := progress.Build{Name: "gpumem-demo", Packages: []string{"./cmd/gpumem-demo"}, Env: []string{"CGO_ENABLED=0"}, Output: program}
	if err := build.Run(ctx, log); err != nil {
		return err
	}
	command := append([]string{program, "--since=" + strconv.FormatInt(*since, 10)}, flags.Args()[1:]...)
	return syscall.Exec(program, command, os.Environ())
}
