package e2e

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/gpumem/gpumem/test/stack"
)

var screenshots = flag.String("screenshots", "", "folder for pictures of the page")

// browser is a Chromium that shows the page of the cluster's extender.
type browser struct {
	*env
	tab context.Context
}

func (e *env) openPage() *browser {
	e.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		e.Skip(`no Chromium on this machine: "make chromium" installs it, as root`)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.WindowSize(1400, 900))
	tab, cancel := chromedp.NewExecAllocator(e.ctx, options...)
	e.Cleanup(cancel)
	tab, cancel = chromedp.NewContext(tab)
	e.Cleanup(cancel)
	b := &browser{env: e, tab: tab}
	if err := chromedp.Do(tab, chromedp.Navigate("http://"+e.forward(stack.Namespace, "deployment/gpumem-scheduler", 8013)+"/")); err != nil {
		e.Fatal(err)
	}
	return b
}

// forward makes a port of gpumem's own reachable, as its users do it, and returns
// where.
func (e *env) forward(namespace, target string, port int) (address string) {
	e.Helper()
	kubectl, err := e.cluster.Kubectl()
	if err != nil {
		e.Fatal(err)
	}
	cmd := exec.CommandContext(e.ctx, kubectl, "--kubeconfig", e.cluster.Kubeconfig(), "port-forward", "--namespace", namespace, target, fmt.Sprintf(":%d", port))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		e.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		e.Fatalf("%s says where it listens: %v", cmd, err)
	}
	address, _, _ = strings.Cut(strings.TrimPrefix(line, "Forwarding from "), " ")
	return address
}

// shows waits until a JavaScript expression comes to a text with all of these
// words in it.
func (b *browser) shows(expression string, words ...string) {
	b.Helper()
	b.eventually(fmt.Sprintf("the page shows %q", words), func() (bool, string) {
		text, err := chromedp.Run(b.tab, chromedp.Evaluate[string]("String("+expression+")"))
		if err != nil {
			return false, err.Error()
		}
		for _, w := range words {
			if !strings.Contains(text, w) {
				return false, text
			}
		}
		return true, text
	})
}

func (b *browser) picture(name string) {
	b.Helper()
	if *screenshots == "" {
		return
	}
	image, err := chromedp.Run(b.tab, chromedp.CaptureScreenshot())
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), image, 0o644); err != nil {
		b.Fatal(err)
	}
}

// The page of an extender that runs shows the GPUs of the cluster, a pod that
// comes without being asked again, and one that waits, with the reason.
func TestThePageShowsTheCluster(t *testing.T) {
	e := setup(t)
	b := e.openPage()
	tile := func(gpu string) string {
		return `document.querySelector('[data-gpu="` + gpu + `"]')?.getAttribute("aria-label")`
	}
	b.shows(`document.querySelectorAll(".gpu").length`, "12")
	b.shows(tile("node1/1"), "Tesla T4", "0 GiB of 14 GiB")
	b.shows(tile("node2/0"), "NVIDIA A100-SXM4-80GB", "0 GiB of 79 GiB")
	b.shows(`document.querySelector('[data-node="node2"] .head')?.title`, "node2", "NVIDIA A100-SXM4-80GB", "Tesla T4")

	e.create(e.pod("comes", 5, onNode("node1"), annotated("gpu-uuid", e.gpu("node1", 1))))
	b.shows(tile("node1/1"), "5 GiB of 14 GiB")
	e.create(e.pod("waits", a100+1))
	b.shows(`document.querySelector("#waiting")?.innerText`, "1 pod waits", e.namespace+"/waits",
		fmt.Sprintf("needs %d GiB on one GPU; the largest that qualifies here has %d GiB", a100+1, a100))

	if err := chromedp.Do(b.tab, chromedp.Click(chromedp.CSS(`[data-gpu="node1/1"]`))); err != nil {
		t.Fatal(err)
	}
	b.shows(`document.querySelector(".details")?.innerText`, "node1 GPU 1", e.gpu("node1", 1), e.namespace+"/comes")
	b.picture("cluster")

	e.delete("comes", 0)
	b.shows(tile("node1/1"), "0 GiB of 14 GiB")
}
