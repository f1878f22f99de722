package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/process/daemon"
)

func TestOptionsReportAllMistakes(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	var o options
	args := []string{
		"--resource-domain=Not A Domain", "--unit-mib=0", "--reserve-mib=-1", "--probe-interval=1ms", "--ignore-xids=79,x",
		"--unassigned=maybe", "--policy=best", "--device-list-strategy=cdi", "--framework-env=caffe", "--enforcement=hard", "--mps-dir=here", "--on-overuse=kill", "--overuse-tolerance-mib=-1", "--kubelet-dir=",
		"--claims", "--kubelet-root-dir=here", "--cdi-dir=here", "--gpu-speeds=/absent", "--probe-listen=8012", "--kube-api-qps=0", "--log-level=loud",
	}
	if err := o.parse(args, io.Discard); err != nil {
		t.Fatal(err)
	}
	_, err := o.config()
	if err == nil {
		t.Fatal("all is well")
	}
	for _, want := range []string{
		"--node-name", "--resource-domain", "--unit-mib", "--reserve-mib", "--kubelet-root-dir", "--cdi-dir", "--gpu-speeds", "--probe-interval", "--ignore-xids", "--unassigned",
		"--policy", "--device-list-strategy", "--framework-env", "--enforcement", "--mps-dir", "--on-overuse", "--overuse-tolerance-mib", "--kubelet-dir", "--probe-listen", "--kube-api-qps", "--log-level",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not a word on %s in: %v", want, err)
		}
	}
}

func TestOptionsByDefault(t *testing.T) {
	t.Setenv("NODE_NAME", "n1")
	var o options
	if err := o.parse(nil, io.Discard); err != nil {
		t.Fatal(err)
	}
	if _, err := o.config(); err != nil {
		t.Error(err)
	}
	if got := daemon.Effective(o.Flags)["ignore-xids"]; got != "" || o.nodeName != "n1" {
		t.Errorf("node %q, XIDs %q", o.nodeName, got)
	}
}

func TestVersionAndHelp(t *testing.T) {
	for _, arg := range []string{"--version", "--help"} {
		var out bytes.Buffer
		if err := run(t.Context(), []string{arg}, &out, io.Discard); !errors.Is(err, pflag.ErrHelp) || out.Len() == 0 {
			t.Errorf("%s: %q, %v", arg, out.String(), err)
		}
	}
	if err := run(t.Context(), []string{"--node-name=n1", "extra"}, io.Discard, io.Discard); err == nil {
		t.Error("an argument too many was taken")
	}
}

// TestWithNothingAround runs the whole process without driver, kubelet and API server. It keeps running,
// reports the missing parts, and ends on a signal.
func TestWithNothingAround(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	logs, stderr := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, []string{
			"--node-name=n1", "--nvml-library=" + filepath.Join(dir, "absent.so"), "--kubelet-dir=" + dir,
			"--cores", "--probe-listen=127.0.0.1:0", "--kubeconfig=" + kubeconfig,
		}, io.Discard, stderr)
		done <- err
		_ = stderr.Close()
	}()
	address, probed := make(chan string, 1), make(chan struct{}, 1)
	go func() {
		lines := bufio.NewScanner(logs)
		for lines.Scan() {
			var line struct{ Msg, Probes string }
			if json.Unmarshal(lines.Bytes(), &line) != nil {
				continue
			}
			switch line.Msg {
			case "serving":
				address <- line.Probes
			case "enforcement judged": // after the GPUs were probed
				probed <- struct{}{}
			}
		}
	}()
	deadline := time.After(20 * time.Second)
	var at string
	for at == "" {
		select {
		case at = <-address:
		case err := <-done:
			t.Fatalf("ended: %v", err)
		case <-deadline:
			t.Fatal("does not serve")
		}
	}
	select {
	case <-probed:
	case <-deadline:
		t.Fatal("does not say that there is no GPU")
	}
	body := get(ctx, t, "http://"+at+"/readyz", http.StatusServiceUnavailable)
	for idle := false; !idle; { // without devices, no kubelet is needed
		select {
		case <-deadline:
			t.Fatalf("a node without a GPU waits for the kubelet:\n%s", body)
		default:
			body = get(ctx, t, "http://"+at+"/readyz", http.StatusServiceUnavailable)
			idle = strings.Contains(body, "[+] kubelet\n")
		}
	}
	for _, want := range []string{
		"[+] gpus (none: NVIDIA's library cannot be loaded from " + filepath.Join(dir, "absent.so"),
		"[-] pods: the pods of node n1 have not been listed yet",
		"[-] inventory: node n1 has not been read yet",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("not a word of %q in:\n%s", want, body)
		}
	}
	get(ctx, t, "http://"+at+"/healthz", http.StatusOK)
	if body := get(ctx, t, "http://"+at+"/metrics", http.StatusOK); !strings.Contains(body, "gpumem_device_plugin_assignment_drift_pods 0") {
		t.Errorf("no drift among the metrics:\n%s", body)
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("run: %v", err)
		}
	case <-deadline:
		t.Fatal("does not end")
	}
}

// A process with a failed part ends at once, and so does a process whose devices the kubelet has never read. Neither
// process withdraws the inventory: that would fail here, because the API server has no node.
func TestWhatIsNotToldToEndDoesNotWithdraw(t *testing.T) {
	var o options
	if err := o.parse([]string{"--node-name=n1"}, io.Discard); err != nil {
		t.Fatal(err)
	}
	cfg, err := o.config()
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(zap.NewNop(), cfg, fake.NewClientset(), nil, nil, nil, byResource)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	n.shutdown(done, nil)
	n.shutdown(t.Context(), done.Done())
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

// FuzzOptions passes arbitrary arguments. Either they are rejected with an error, or all parts can be created.
func FuzzOptions(f *testing.F) {
	f.Add("--node-name=n1 --unit-mib=256 --ignore-xids=,13, --framework-env=jax,jax --device-list-strategy=cdi-cri")
	f.Add("--node-name=n1 --unit-mib=9223372036854775807 --reserve-mib=9223372036854775807 --resource-domain=aliyun.com")
	f.Add("--node-name= --probe-interval=-1s --ignore-xids=-1")
	f.Add("--node-name=n1 --policy=exclusive --unassigned=refuse --kube-api-qps=NaN")
	f.Fuzz(func(t *testing.T, line string) {
		var o options
		if o.parse(strings.Fields(line), io.Discard) != nil {
			return
		}
		cfg, err := o.config()
		if err != nil {
			return
		}
		n := newNode(zap.NewNop(), cfg, fake.NewClientset(), nil, nil, nil, byResource)
		if inv, _ := n.inventory(); len(inv.Devices) > 0 || !(o.Kube.QPS > 0) || o.nodeName == "" {
			t.Errorf("%q is accepted: %v", line, daemon.Effective(o.Flags))
		}
	})
}
