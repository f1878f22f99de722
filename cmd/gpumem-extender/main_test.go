package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/process/daemon"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
)

func TestOptionsReportAllMistakes(t *testing.T) {
	var o options
	args := []string{
		"--listen=8010", "--probe-listen=8011", "--read-listen=:8013", "--decisions=-1", "--resource-domain=Not A Domain", "--policy=best", "--node-policy=exclusive",
		"--tls-cert-file=tls.crt", "--leader-elect", "--assume-limit=1s", "--self-check-interval=-1s", "--kube-api-qps=0", "--log-level=loud",
	}
	if err := o.parse(args, io.Discard); err != nil {
		t.Fatal(err)
	}
	err := o.complete()
	if err == nil {
		t.Fatal("all is well")
	}
	for _, want := range []string{
		"--listen", "--tls-private-key-file", "--leader-elect-lease-namespace", "--probe-listen", "--read-listen", "--decisions", "--resource-domain", "--policy: \"best\"", "--node-policy: only a pod itself can ask for exclusive",
		"--assume-limit", "--self-check-interval", "--kube-api-qps", "--log-level",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not a word on %s in: %v", want, err)
		}
	}
}

func TestPolicies(t *testing.T) {
	tests := map[string]struct {
		args []string
		want ranking.Policies
	}{
		"by default":        {nil, ranking.Policies{GPU: placement.Binpack}},
		"of GPUs and nodes": {[]string{"--policy=spread"}, ranking.Policies{GPU: placement.Spread}},
		"one for each":      {[]string{"--policy=binpack", "--node-policy=spread"}, ranking.Policies{GPU: placement.Binpack, Node: placement.Spread}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var o options
			if err := o.parse(tc.args, io.Discard); err != nil {
				t.Fatal(err)
			}
			err := o.complete()
			if diff := cmp.Diff(tc.want, o.Policies); diff != "" || err != nil {
				t.Errorf("policies: %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestOptionsThatAreFine(t *testing.T) {
	for _, args := range [][]string{nil, {"--self-check-interval=0"}, {"--listen=localhost:1"}, {"--listen=[::1]:1"}} {
		var o options
		if err := o.parse(args, io.Discard); err != nil {
			t.Fatal(err)
		}
		if err := o.complete(); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestVersionAndHelp(t *testing.T) {
	for _, arg := range []string{"--version", "--help"} {
		var out bytes.Buffer
		if err := run(t.Context(), []string{arg}, &out, io.Discard); !errors.Is(err, pflag.ErrHelp) || out.Len() == 0 {
			t.Errorf("%s: %q, %v", arg, out.String(), err)
		}
	}
	if err := run(t.Context(), []string{"extra"}, io.Discard, io.Discard); err == nil {
		t.Error("an argument too many was taken")
	}
}

// TestWithNothingAround runs the whole process without an API server. The process keeps running, reports the
// missing data, and exits on request.
func TestWithNothingAround(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	logs, stderr := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, []string{"--listen=127.0.0.1:0", "--probe-listen=127.0.0.1:0", "--read-listen=127.0.0.1:0", "--kubeconfig=" + kubeconfig}, io.Discard, stderr)
		done <- err
		_ = stderr.Close()
	}()
	type addresses struct{ Msg, Verbs, Probes string }
	serving := make(chan addresses, 1)
	go func() {
		lines := bufio.NewScanner(logs)
		for lines.Scan() {
			var line addresses
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
				serving <- line
			}
		}
	}()
	var at addresses
	select {
	case at = <-serving:
	case err := <-done:
		t.Fatalf("ended: %v", err)
	}
	for _, tc := range []struct {
		address, path string
		status        int
		want          string
	}{
		{at.Probes, "/readyz", http.StatusServiceUnavailable, "[-] cache: the first list of nodes has not been worked off"},
		{at.Probes, "/healthz", http.StatusOK, "ok"},
		{at.Probes, "/version", http.StatusOK, `"version":"dev"`},
		{at.Probes, "/metrics", http.StatusOK, `gpumem_extender_cache_drift_objects{kind="pod"} 0`},
		{at.Verbs, "/metrics", http.StatusNotFound, ""},
	} {
		if body := get(ctx, t, "http://"+tc.address+tc.path, tc.status); !strings.Contains(body, tc.want) {
			t.Errorf("not a word of %q on %s:\n%s", tc.want, tc.path, body)
		}
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("run: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("does not end")
	}
}

func get(ctx context.Context, t *testing.T, url string, want int) string {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != want {
		t.Errorf("%s: %s, %v\n%s", url, resp.Status, err, body)
	}
	return string(body)
}

// FuzzOptions passes arbitrary arguments. Each set is rejected with a message or is safe to run with.
func FuzzOptions(f *testing.F) {
	f.Add("--listen=127.0.0.1:0 --policy=spread --node-policy=binpack")
	f.Add("--self-check-interval 0 --assume-limit=1h --kube-api-qps=NaN")
	f.Add("--resource-domain requests.x --log-format= -- extra")
	f.Add("--listen=:1 --tls-cert-file=a --tls-private-key-file=b --tls-client-ca-file=c --tls-client-name=")
	f.Add("--listen=[::ffff:127.0.0.1]:1 --kube-api-burst=-9223372036854775808")
	f.Fuzz(func(t *testing.T, line string) {
		var o options
		if o.parse(strings.Fields(line), io.Discard) != nil {
			return
		}
		if err := o.complete(); err != nil {
			return
		}
		host, _, err := net.SplitHostPort(o.listen)
		secret := o.tls.CertFile != "" && o.tls.KeyFile != "" && o.tls.ClientCAFile != "" && o.tls.ClientName != ""
		if ip := net.ParseIP(host); err != nil || !secret && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			t.Errorf("%q lets others bind pods: %q, %v", line, o.listen, err)
		}
		if !(o.Kube.QPS > 0) || o.Kube.Burst <= 0 || o.SelfCheck < 0 || o.AssumeLimit < 2*controller.BindDeadline {
			t.Errorf("%q is accepted: %v", line, daemon.Effective(o.Flags))
		}
	})
}

// A client that reaches bind can bind any pod to any node. So the verbs are served only to this machine, or
// to clients with a certificate.
func TestVerbsAreServedOnLoopbackAlone(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:8010": true, "127.0.0.2:8010": true, "localhost:8010": true, "[::1]:8010": true,
		":8010": false, "0.0.0.0:8010": false, "[::]:8010": false, "10.0.0.1:8010": false, "example.com:8010": false, "8010": false,
	} {
		var o options
		if err := o.parse([]string{"--listen=" + address}, io.Discard); err != nil {
			t.Fatal(err)
		}
		if err := o.complete(); (err == nil) != want {
			t.Errorf("--listen=%s: %v, want it accepted: %t", address, err, want)
		}
		if err := o.parse([]string{"--listen=" + address, "--tls-cert-file=a", "--tls-private-key-file=b", "--tls-client-ca-file=c"}, io.Discard); err != nil {
			t.Fatal(err)
		}
		if err := o.complete(); (err == nil) != strings.Contains(address, ":") {
			t.Errorf("--listen=%s, by mutual TLS: %v", address, err)
		}
	}
	var byDefault options
	if err := byDefault.parse(nil, io.Discard); err != nil {
		t.Fatal(err)
	}
	if host, _, err := net.SplitHostPort(byDefault.listen); err != nil || !net.ParseIP(host).IsLoopback() {
		t.Errorf("by default they are served on %q", host)
	}
}
