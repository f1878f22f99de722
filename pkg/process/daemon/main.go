package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/zapr"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// Main runs a program with the arguments and streams of the process. An interrupt or SIGTERM cancels the
// program's context. Main returns the exit code. If the program failed, Main prints the error to stderr and
// returns 1. The error pflag.ErrHelp is no failure.
func Main(name string, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

// Parse parses arguments that must all be flags. If they request help, Parse prints the description and the
// flags to stdout and returns pflag.ErrHelp.
func Parse(f *pflag.FlagSet, description string, args []string, stdout io.Writer) error {
	f.SetOutput(stdout)
	f.Usage = func() { fmt.Fprintf(stdout, "%s\n\nFlags:\n%s", description, f.FlagUsages()) }
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected arguments: %s", strings.Join(f.Args(), " "))
	}
	return nil
}

// Options are the flags of programs that use the API server.
type Options struct {
	Kube  Kube
	Log   Log
	Flags *pflag.FlagSet // all flags of the program
}

// Parse adds the flags of the options to f, and parses the arguments like the function Parse. If these request
// the version, Parse prints it to stdout and returns pflag.ErrHelp.
func (o *Options) Parse(f *pflag.FlagSet, version, description string, args []string, stdout io.Writer) error {
	var showVersion bool
	o.Flags = f
	o.Kube.AddFlags(f)
	o.Log.AddFlags(f)
	f.BoolVar(&showVersion, "version", false, "print the version and end")
	err := Parse(f, description, args, stdout)
	if err == nil && showVersion {
		fmt.Fprintln(stdout, version)
		err = pflag.ErrHelp
	}
	return err
}

// Validate rejects unusable values of the flags.
func (o *Options) Validate() error { return errors.Join(o.Kube.Validate(), o.Log.Validate()) }

// Start logs that the program starts, and returns its logger and a client of the API server.
func (o *Options) Start(program, version string, stderr io.Writer) (*zap.Logger, *kubernetes.Clientset, error) {
	log, err := o.Log.New(stderr)
	if err != nil {
		return nil, nil, err
	}
	klog.SetLogger(zapr.NewLogger(log.Named("client-go")))
	log.Info("starting", zap.String("version", version), zap.Any("options", Effective(o.Flags)))
	client, err := o.Kube.client(program + "/" + version)
	return log, client, err
}

// Effective returns the value of every flag, for the log.
func Effective(f *pflag.FlagSet) map[string]string {
	out := make(map[string]string)
	f.VisitAll(func(f *pflag.Flag) { out[f.Name] = f.Value.String() })
	return out
}

// FlagErrors collects the errors in the values of flags.
type FlagErrors []error

// Add adds an error in the value of a flag; nil: no error.
func (e *FlagErrors) Add(flag string, err error) {
	if err != nil {
		*e = append(*e, fmt.Errorf("--%s: %w", flag, err))
	}
}

// Require adds an error with this message unless ok.
func (e *FlagErrors) Require(ok bool, flag, format string, args ...any) {
	if !ok {
		e.Add(flag, fmt.Errorf(format, args...))
	}
}

// ParseFlag parses the value of a flag, and adds an error to e.
func ParseFlag[T any](e *FlagErrors, flag string, parse func(string) (T, error), value string) T {
	out, err := parse(value)
	e.Add(flag, err)
	return out
}
