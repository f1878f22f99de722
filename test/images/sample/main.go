// Program sample prints what it was granted, the variables of its environment
// that a device plugin or a runtime sets for GPUs and frameworks read (see
// printed), one a line and sorted, and then waits to be told to end.
//
//	SAMPLE_EXIT_AFTER=5s     or -exit-after 5s: end by itself, with success
//	SAMPLE_EXIT_CODE=1       or -exit-code 1: with this exit status then
//	SAMPLE_IGNORE_TERM=true  or -ignore-term: outlive SIGTERM, so that a pod stays Terminating
//	-require-grant           fail unless it was told of a share of a GPU
//	SAMPLE_GET=URL           or -get URL, more than once: fetch the URL once and print the status
//
// And what a program does that means no good, see attack.go:
//
//	-flood URL               fetch the URL again and again, many at a time
//	-remove PATH             remove a file
//	-fill PATH               write a file until that fails, 1280 MiB at most
//	-serve ADDRESS -text T   answer every request with a text
package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// printed returns how the names of the variables that are printed begin.
// The last three are read by JAX, PyTorch and Paddle.
func printed() []string {
	return []string{"GPUMEM_", "NVIDIA_", "CUDA_", "XLA_", "PYTORCH_", "FLAGS_"}
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sample:", err)
		os.Exit(2)
	}
}

func run() error {
	exitAfter, err := time.ParseDuration(cmp.Or(os.Getenv("SAMPLE_EXIT_AFTER"), "0s"))
	if err != nil {
		return fmt.Errorf("SAMPLE_EXIT_AFTER: %w", err)
	}
	exitCode, err := strconv.Atoi(cmp.Or(os.Getenv("SAMPLE_EXIT_CODE"), "0"))
	if err != nil {
		return fmt.Errorf("SAMPLE_EXIT_CODE: %w", err)
	}
	ignoreTerm, err := strconv.ParseBool(cmp.Or(os.Getenv("SAMPLE_IGNORE_TERM"), "false"))
	if err != nil {
		return fmt.Errorf("SAMPLE_IGNORE_TERM: %w", err)
	}
	var get []string
	if url := os.Getenv("SAMPLE_GET"); url != "" {
		get = append(get, url)
	}
	flag.DurationVar(&exitAfter, "exit-after", exitAfter, "end after this time; 0 means never")
	flag.IntVar(&exitCode, "exit-code", exitCode, "the exit status at that end")
	flag.BoolVar(&ignoreTerm, "ignore-term", ignoreTerm, "take no notice of SIGTERM")
	requireGrant := flag.Bool("require-grant", false, "fail unless the environment tells of a share of a GPU")
	flag.Func("get", "a URL to fetch once", func(url string) error {
		get = append(get, url)
		return nil
	})
	attacks := attackFlags()
	flag.Parse()

	// The signal is caught before anything is printed: who sees output may
	// send it.
	ctx := context.Background()
	if ignoreTerm {
		// Caught and not read. Were it ignored, nothing could wake the program any
		// more, and Go ends one of which that is so.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM)
	} else {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
		defer stop()
	}

	env := slices.DeleteFunc(os.Environ(), func(s string) bool {
		return !slices.ContainsFunc(printed(), func(prefix string) bool {
			return strings.HasPrefix(s, prefix)
		})
	})
	slices.Sort(env)
	for _, s := range env {
		fmt.Println(s)
	}
	if *requireGrant {
		if err := checkGrant(); err != nil {
			return err
		}
	}
	for _, url := range get {
		fetch(ctx, url)
	}
	attacks.run(ctx)

	var after <-chan time.Time
	if exitAfter > 0 {
		after = time.After(exitAfter)
	}
	select {
	case <-ctx.Done():
	case <-after:
		os.Exit(exitCode) //nolint:gocritic // the signal is of no interest any more
	}
	return nil
}

// checkGrant says what is missing of what the device plugin tells a container.
func checkGrant() error {
	if os.Getenv("GPUMEM_GPU_UUID") == "" {
		return errors.New("GPUMEM_GPU_UUID is not set: no GPU was handed over")
	}
	if mib, err := strconv.ParseInt(os.Getenv("GPUMEM_LIMIT_MIB"), 10, 64); err != nil || mib <= 0 {
		return fmt.Errorf("GPUMEM_LIMIT_MIB is %q, want MiB of GPU memory", os.Getenv("GPUMEM_LIMIT_MIB"))
	}
	return nil
}

// fetch prints how url answers. It looks at the way there, not at who is there,
// so it takes any certificate.
func fetch(ctx context.Context, url string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		fmt.Println("get:", err)
		return
	}
	response, err := client.Do(request)
	if err != nil {
		fmt.Println("get:", err)
		return
	}
	response.Body.Close()
	fmt.Println("get:", url, response.Status)
}
