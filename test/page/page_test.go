package page

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/page"
	"github.com/gpumem/gpumem/pkg/report/page/pagetest"
)

var screenshots = flag.String("screenshots", "", "folder for pictures of the page")

// patience is how long a browser may take on a busy machine.
const patience = 2 * time.Minute

// browser is a real Chromium that shows the page of a world.
type browser struct {
	*testing.T
	ctx context.Context
	url string
}

func open(t *testing.T, w *pagetest.World) *browser { return openAt(t, w, "/") }

// openAt opens the page with a query.
func openAt(t *testing.T, w *pagetest.World, path string) *browser {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Skip(`no Chromium on this machine: "make chromium" installs it, as root`)
	}
	server := httptest.NewServer(handler(w))
	t.Cleanup(server.Close)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.WindowSize(1400, 900))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{T: t, ctx: ctx, url: server.URL}
	b.do(chromedp.Navigate(server.URL+path), chromedp.WaitVisible(chromedp.CSS(".gpu")))
	return b
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.Fatal(err)
	}
}

func (b *browser) click(selector string) {
	b.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector)))
}

func (b *browser) write(selector, keys string) {
	b.Helper()
	b.do(chromedp.SendKeys(chromedp.CSS(selector), keys))
}

// choose sets a field of the form.
func (b *browser) choose(field, value string) {
	b.Helper()
	b.eval(fmt.Sprintf(`(() => {
		const e = document.querySelector("[name=%s]");
		e.value = %q;
		e.dispatchEvent(new Event("input", {bubbles: true}));
	})()`, field, value))
}

// eval returns what a JavaScript expression comes to, as text.
func (b *browser) eval(expression string) string {
	b.Helper()
	out, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("String("+expression+")"))
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// until waits for an expression to hold.
func (b *browser) until(expression string) {
	b.Helper()
	if _, err := chromedp.Run(b.ctx, chromedp.Poll[bool](expression, chromedp.WithPollingTimeout(patience))); err != nil {
		b.Fatalf("waiting for %s: %v", expression, err)
	}
}

// prefer makes the browser like light pages or dark ones.
func (b *browser) prefer(scheme string) {
	b.Helper()
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	}))
}

func (b *browser) picture(name string) {
	b.Helper()
	if *screenshots == "" {
		return
	}
	image, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), image, 0o644); err != nil {
		b.Fatal(err)
	}
}

func handler(w *pagetest.World) http.Handler {
	return page.Handler(&page.Source{
		Nodes: w.Nodes, Facts: w.Facts, Missing: func() string { return "" },
		Used: func() map[gpu.UUID]int64 { return w.Used }, Version: "v1.2.3", Cluster: "west",
	}, nil, time.Now)
}

// smallFleet has something of everything.
func smallFleet() *pagetest.World {
	w := pagetest.NewWorld()
	w.Offer("gpu-a", "Tesla T4", 14, 14)
	w.Offer("gpu-b", "NVIDIA A100-SXM4-80GB", 79, 79, 79, 79)
	w.Offer("gpu-c", "NVIDIA H100 80GB HBM3", 79, 79, 79, 79, 79, 79, 79, 79)
	w.Place("ml/train-0", "gpu-a", 0, 5)
	w.Place("ml/train-1", "gpu-a", 0, 9)
	w.Place("web/infer", "gpu-a", 1, 3)
	for i := range 6 {
		w.Place(fmt.Sprintf("vision/job-%d", i), "gpu-c", i, gpu.Units(10+9*i))
	}
	w.Place("batch/night", "gpu-b", 2, 79)
	inv := gpu.Inventory{UnitMiB: 1024}
	for i := range 4 {
		inv.Devices = append(inv.Devices, gpu.Device{UUID: kubetest.UUID("gpu-d", i), Index: i, Model: "NVIDIA L4", Allocatable: 22, MemoryMiB: 23034, NUMANode: -1})
	}
	inv.Devices[2].Status = gpu.Unhealthy("XID 79: the GPU has fallen off the bus")
	w.SetNode("gpu-d", inv)
	w.Wait("web/next", 100)
	for i := range 40 {
		w.Wait(fmt.Sprintf("ml/burst-%d", i), 90)
		w.Waiting[i+1].Owner, w.Waiting[i+1].Created = "Job/burst", pagetest.Started
	}
	return w
}

const gpus = `document.querySelectorAll(".gpu[data-gpu]").length`

func TestPageInChromium(t *testing.T) {
	w := smallFleet()
	b := open(t, w)
	b.until(gpus + " === 18")
	b.picture("light")

	// A click shows the pods of a GPU, and Escape brings back where one was.
	b.click(`[data-gpu="gpu-a/0"]`)
	b.until(`!document.querySelector("#details").hidden`)
	for _, want := range []string{"gpu-a GPU 0", "ml/train-0", "14 GiB of 14 GiB (100%)", "kubectl inspect gpumem explain -n ml train-1"} {
		if got := b.eval(`document.querySelector("#details").innerText`); !strings.Contains(got, want) {
			t.Errorf("want %q in the details:\n%s", want, got)
		}
	}
	b.until(`document.activeElement.textContent === "gpu-a GPU 0"`) // the heading
	b.picture("details")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.until(`document.querySelector("#details").hidden && document.activeElement.dataset.gpu === "gpu-a/0"`)

	// The keyboard alone gets everywhere.
	b.do(chromedp.KeyEvent(kb.ArrowRight))
	b.until(`document.activeElement.dataset.gpu === "gpu-a/1"`)
	b.do(chromedp.KeyEvent(kb.ArrowDown))
	b.until(`document.activeElement.dataset.gpu === "gpu-b/1"`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until(`document.querySelector("#details h2")?.textContent === "gpu-b GPU 1"`)
	b.do(chromedp.KeyEvent(kb.Escape))

	// Live: a pod that comes is seen without doing anything, and what has the focus keeps it.
	w.Place("ml/fresh", "gpu-b", 0, 40)
	b.until(`document.querySelector('[data-gpu="gpu-b/0"]').getAttribute("aria-label").includes("40 GiB of 79 GiB")`)
	b.until(`document.activeElement.dataset.gpu === "gpu-b/1"`)

	// What waits, and why; and what is in trouble.
	text := b.eval(`document.querySelector("aside").innerText`)
	for _, want := range []string{
		"41 pods wait", "needs 100 GiB on one GPU", "40 × ml Job/burst", "90 GiB each, the oldest for ", "1 GPU in trouble", "gpu-d GPU 2: XID 79",
		"kubectl inspect gpumem explain -n web next",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}
	if got := b.eval(`performance.getEntriesByType("resource").map((e) => e.name).filter((n) => !n.startsWith(location.origin) && !n.startsWith("data:")).join(" ")`); got != "" {
		t.Errorf("requests left for %s", got)
	}
}

// What is used is shown where a plugin tells of it, and colours the map if asked.
func TestUseInChromium(t *testing.T) {
	w := smallFleet()
	w.Used = map[gpu.UUID]int64{kubetest.UUID("gpu-a", 0): 13 << 10, kubetest.UUID("gpu-a", 1): 0}
	b := openAt(t, w, "/?view=map&by=used")
	for gpu, want := range map[string]string{"gpu-a/0": "heat4", "gpu-a/1": "heat0", "gpu-b/0": "heatunknown"} {
		if got := b.eval(`document.querySelector('[data-gpu="` + gpu + `"]').className`); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", gpu, got, want)
		}
	}
	b.picture("used")
	if got := b.eval(`document.querySelector("#sums").innerText`); !strings.Contains(got, "Used\n13 GiB (1%)") {
		t.Errorf("sums: %s", got)
	}
	b.choose("view", "tiles")
	b.choose("by", "")
	if got, want := b.eval(`document.querySelector('[data-gpu="gpu-a/0"]').innerText`), "GPU0 T4\n0 GiB free\n14/14 GiB, 13 used"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A tile says of which model its GPU is, and what is free of how much.
func TestTilesTellModelsApartInChromium(t *testing.T) {
	b := open(t, smallFleet())
	for gpu, want := range map[string]string{"gpu-a/1": "GPU1 T4\n11 GiB free\n3/14 GiB", "gpu-b/0": "GPU0 A100\n79 GiB free\n0/79 GiB"} {
		if got := b.eval(`document.querySelector('[data-gpu="` + gpu + `"]').innerText`); got != want {
			t.Errorf("%s: %q, want %q", gpu, got, want)
		}
	}
}

// The sums of a namespace are the namespace's, though others are on the same GPUs.
func TestSumsOfANamespaceInChromium(t *testing.T) {
	w := pagetest.NewWorld()
	w.Offer("gpu-a", "Tesla T4", 14, 14)
	w.Place("ml/train", "gpu-a", 0, 5)
	w.Place("web/infer", "gpu-a", 0, 7)
	w.Place("web/other", "gpu-a", 1, 7)
	b := openAt(t, w, "/?namespace=ml")
	text := b.eval(`document.body.innerText`)
	for _, want := range []string{"Allocated to ml\n5 GiB (35%)", "Allocated of these GPUs, to all\n12 GiB of 14 GiB (85%)", "web\n14 GiB, 50% of the fleet", "ml\n5 GiB, 17% of the fleet"} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}
}

// The URL carries the filters, so that it can be sent to others.
func TestURLCarriesTheFiltersInChromium(t *testing.T) {
	b := openAt(t, smallFleet(), "/?model=NVIDIA+L4&sort=free&gpu=gpu-d%2F1")
	b.until(gpus + ` === 4 && document.querySelector("#details h2").textContent === "gpu-d GPU 1"`)
	b.write("[name=trouble]", "trouble")
	b.until(gpus + ` === 1`)
	if got, want := b.eval(`location.search`), "?model=NVIDIA+L4&trouble=only&sort=free&gpu=gpu-d%2F1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Nodes and pods have URLs of their own, and the title names the cluster.
func TestDetailsHaveURLsInChromium(t *testing.T) {
	w := smallFleet()
	w.Used = map[gpu.UUID]int64{kubetest.UUID("gpu-a", 0): 7 << 10}
	for query, want := range map[string][]string{
		"?node=gpu-a":       {"gpu-a\n", "17 GiB of 28 GiB (60%)", "7 GiB (25%)", "GPU 1\n3 GiB of 14 GiB (21%), healthy", "3 pods", "ml/train-0\n5 GiB, for "},
		"?node=gpu-d":       {"gpu-d\n", "NVIDIA L4", "takes no new pods: XID 79: the GPU has fallen off the bus", "0 pods"},
		"?pod=ml%2Ftrain-1": {"ml/train-1\n", "gpu-a", "running for ", "GPU 0\nTesla T4, 9 GiB", "kubectl inspect gpumem explain -n ml train-1"},
		"?pod=web%2Fnext":   {"web/next\n", "waiting, ", "needs 100 GiB on one GPU"},
		"?gpu=gpu-a%2F0":    {"gpu-a GPU 0\n", "7,168 MiB (50%)", "2 pods"},
	} {
		t.Run(query, func(t *testing.T) {
			b := openAt(t, w, "/"+query)
			b.until(`!document.querySelector("#details").hidden`)
			text := b.eval(`document.querySelector("#details").innerText`)
			for _, part := range want {
				if !strings.Contains(text, part) {
					t.Errorf("want %q in:\n%s", part, text)
				}
			}
			if got := b.eval(`location.search`); got != query {
				t.Errorf("the URL has %s, want %s", got, query)
			}
		})
	}
	b := openAt(t, w, "/?gpu=gpu-a%2F0")
	b.click(`#details a[href="?pod=ml%2Ftrain-0"]`)
	b.until(`location.search === "?pod=ml%2Ftrain-0" && document.querySelector("#details h2").textContent === "ml/train-0"`)
	b.click(`#details a[href="?node=gpu-a"]`)
	b.until(`location.search === "?node=gpu-a"`)
	b.picture("node")
	if got, want := b.eval(`document.title + "|" + document.querySelector("h1").innerText`), "west: GPU memory|GPU memory west, gpumem v1.2.3"; got != want {
		t.Errorf("title %q, want %q", got, want)
	}
	b = openAt(t, w, "/?node=none")
	if got := b.eval(`document.querySelector("#details").hidden`); got != "true" {
		t.Error("an unknown node has details")
	}
}

func TestSortInChromium(t *testing.T) {
	b := open(t, smallFleet())
	const order = `[...document.querySelectorAll(".node")].map((n) => n.dataset.node.slice(4)).join("")`
	for _, tc := range []struct{ by, want string }{{"trouble", "dabc"}, {"free", "bcda"}, {"model", "bcda"}, {"", "abcd"}} {
		b.choose("sort", tc.by)
		b.until(order + ` === "` + tc.want + `"`)
	}
}

// What is copied is the command that is shown.
func TestCommandIsCopiedInChromium(t *testing.T) {
	b := open(t, smallFleet())
	b.eval(`navigator.clipboard.writeText = async (text) => { window.copied = text; }`)
	b.click(`[aria-label="Copy kubectl inspect gpumem explain -n web next"]`)
	b.until(`window.copied === "kubectl inspect gpumem explain -n web next"`)
}

func TestFiltersInChromium(t *testing.T) {
	b := open(t, smallFleet())
	b.until(gpus + " === 18")
	for _, tc := range []struct {
		name, keys, field string
		want              int
	}{
		{"a node", "gpu-b", "search", 4},
		{"a pod", "train-1", "search", 1},
		{"two words", "H100 vision", "search", 6},
		{"a model", "NVIDIA L4", "model", 4},
		{"a namespace", "ml", "namespace", 1},
		{"what is free", "70", "free", 3 + 2},
		{"nothing", "no such thing", "search", 0},
	} {
		b.write("[name="+tc.field+"]", tc.keys)
		b.until(fmt.Sprintf("%s === %d", gpus, tc.want))
		if tc.name == "what is free" {
			b.picture("filtered")
		}
		b.choose(tc.field, "")
		b.until(gpus + " === 18")
	}
}

// What is free on a node that takes no new pods, or that is for some, is not what is free.
func TestNodesThatTakeNoNewPodsInChromium(t *testing.T) {
	w := pagetest.NewWorld()
	for name, gib := range map[string]int{"gpu-cordoned": 40, "gpu-down": 79, "gpu-open": 14, "gpu-stopped": 24, "gpu-team": 22} {
		w.Offer(name, "Tesla T4", gib, gib)
	}
	w.Place("ml/train-0", "gpu-open", 0, 11)
	w.Place("ml/train-1", "gpu-open", 1, 12)
	w.Place("ml/there", "gpu-down", 0, 30)
	w.Wait("ml/next", 30)
	w.Known["gpu-cordoned"] = inspect.NodeFacts{Refuses: &decide.Refusal{Message: inspect.NodeCordoned}}
	w.Known["gpu-down"] = inspect.NodeFacts{Refuses: &decide.Refusal{Message: inspect.NodeNotReady}}
	w.Known["gpu-stopped"] = inspect.NodeFacts{Refuses: &decide.Refusal{Message: "its kubelet offers no gpumem.dev/gpu-mem: see kubectl inspect gpumem doctor"}}
	w.Known["gpu-team"] = inspect.NodeFacts{Taint: "team"}
	b := open(t, w)
	b.until(gpus + " === 10")
	b.picture("nodes-that-take-no-new-pods")
	text := b.eval(`document.body.innerText`)
	for _, want := range []string{
		"Largest free on one GPU\n3 GiB", "Largest free behind a taint\n22 GiB", "GPUs that take no new pods\n6 (60%)",
		"the node is NotReady", "the node is cordoned", "its kubelet offers no gpumem.dev/gpu-mem", "taint team",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}
	for gpu, want := range map[string]string{
		"gpu-down/1": "takes no new pods: the node is NotReady", "gpu-team/0": "healthy, for pods that tolerate taint team", "gpu-open/0": ", healthy",
	} {
		if label := b.eval(`document.querySelector('[data-gpu="` + gpu + `"]').getAttribute("aria-label")`); !strings.HasSuffix(label, want) {
			t.Errorf("%s: %q, want %q", gpu, label, want)
		}
	}
	b.write(`[name="free"]`, "13")
	b.until(gpus + " === 2") // those that are for some
}

// What a pod leaves of a GPU that it has alone is free for no other.
func TestAGPUThatOnePodHasAloneInChromium(t *testing.T) {
	w := pagetest.NewWorld()
	w.Offer("gpu-a", "Tesla T4", 14, 14)
	alone := placement.Holding{Pod: placement.PodRef{Namespace: "ml", Name: "alone", UID: "alone"}, Request: pagetest.Asks(4), Admitted: true}
	alone.Request.Policy = placement.Exclusive
	alone.Assignment.Shares = []placement.Share{{Device: kubetest.UUID("gpu-a", 0), Units: 4}}
	w.AddPod("gpu-a", alone)
	w.Place("ml/other", "gpu-a", 1, 9)
	b := open(t, w)
	b.until(gpus + " === 2")
	if got := b.eval(`document.querySelector('[data-gpu="gpu-a/0"]').innerText`); !strings.Contains(got, "one pod alone") || strings.Contains(got, "free") {
		t.Errorf("the tile says %q, want that one pod has it alone", got)
	}
	if got := b.eval(`document.body.innerText`); !strings.Contains(got, "Largest free on one GPU\n5 GiB") {
		t.Errorf("want 5 GiB as the largest that is free, in:\n%s", got)
	}
	b.write(`[name="free"]`, "6")
	b.until(gpus + " === 0")
}

func TestDarkPageInChromium(t *testing.T) {
	b := open(t, smallFleet())
	light := b.eval(`getComputedStyle(document.body).backgroundColor`)
	b.prefer("dark")
	if dark := b.eval(`getComputedStyle(document.body).backgroundColor`); dark == light {
		t.Errorf("dark and light are both %s", dark)
	}
	b.click(`[data-gpu="gpu-d/2"]`)
	b.until(`!document.querySelector("#details").hidden`)
	b.picture("dark")
}

// Every control has a name for a screen reader, headings come in order, and text
// stands out from its ground (WCAG 2.2, AA: 4.5 to 1).
func TestPageIsAccessible(t *testing.T) {
	w := smallFleet()
	w.Known["gpu-b"] = inspect.NodeFacts{Refuses: &decide.Refusal{Message: inspect.NodeNotReady}}
	w.Known["gpu-c"] = inspect.NodeFacts{Taint: "team"}
	b := open(t, w)
	b.click(`[data-gpu="gpu-a/0"]`)
	b.until(`!document.querySelector("#details").hidden`)
	if got := b.eval(`[...document.querySelectorAll("button, input, select")].filter((e) => !(e.getAttribute("aria-label") || e.labels?.[0]?.textContent || e.textContent.trim())).map((e) => e.outerHTML).join("\n")`); got != "" {
		t.Errorf("controls without a name:\n%s", got)
	}
	const contrast = `(() => {
		const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
		const rgb = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
		const light = ([r, g, b]) => { const f = (c) => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; }; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
		const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255]; };
		const bad = [];
		for (const e of document.querySelectorAll("h1, h2, h3, small, p, dt, dd, label, button, span, b")) {
			if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
			const [x, y] = [light(rgb(getComputedStyle(e).color)), light(ground(e))];
			const ratio = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
			if (ratio < 4.5) bad.push(e.tagName + " " + e.textContent.slice(0, 30) + " " + ratio.toFixed(2));
		}
		return bad.join("; ");
	})()`
	for _, scheme := range []string{"light", "dark"} {
		b.prefer(scheme)
		if got := b.eval(contrast); got != "" {
			t.Errorf("%s: text that is hard to read: %s", scheme, got)
		}
	}
}

// large is a fleet of nodes with eight GPUs and what goes wrong in such.
func large(nodes int) *pagetest.World {
	w := pagetest.NewWorld()
	for i := range nodes {
		name, model, gib := fmt.Sprintf("node-%04d", i), "NVIDIA A100-SXM4-80GB", 79
		if i%4 == 3 {
			model, gib = "Tesla T4", 14
		}
		w.Offer(name, model, gib, gib, gib, gib, gib, gib, gib, gib)
		for j := range 8 {
			if (i+j)%5 > 0 {
				w.Place(fmt.Sprintf("team-%d/pod-%d-%d", i%23, i, j), name, j, gpu.Units(1+(7*i+9*j)%gib))
			}
		}
		switch {
		case i%29 == 0:
			w.Known[name] = inspect.NodeFacts{Refuses: &decide.Refusal{Message: inspect.NodeNotReady}}
		case i%31 == 0:
			w.Known[name] = inspect.NodeFacts{Taint: "team"}
		}
	}
	for i := range 40 {
		w.Wait(fmt.Sprintf("team-7/burst-%d", i), 90)
		w.Waiting[i].Owner, w.Waiting[i].Created = "Job/burst", pagetest.Started
	}
	w.Wait("team-3/train", 200)
	return w
}

// With 5,000 nodes of eight GPUs, only what is seen is drawn, and the last node
// is as near as the first.
func TestFiveThousandNodesInChromium(t *testing.T) {
	b := open(t, large(5000))
	b.until(`document.querySelector("#sums").innerText.includes("40,000")`)
	b.picture("5000-nodes")
	if got := b.eval(gpus + ` < 8 * 400`); got != "true" {
		t.Errorf("%s GPUs are drawn", b.eval(gpus))
	}
	b.eval(`scrollTo(0, 1e9)`)
	b.until(`!!document.querySelector('[data-gpu="node-4999/7"]')`)
	b.write("[name=search]", "pod-4321-3")
	b.until(gpus + ` === 1 && !!document.querySelector('[data-gpu="node-4321/3"]')`)
}

// size makes the window of a size, in CSS px.
func (b *browser) size(width, height int64) {
	b.Helper()
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1})
		return err
	}))
	// The page is laid out after the first frame of the new size, and what is polled is asked before.
	b.until(fmt.Sprintf("innerWidth === %d && (window.framesOf%d = (window.framesOf%d ?? 0) + 1) > 3", width, width, width))
}

// From a phone to a wide screen, nothing is wider than the window, and no text of a tile is cut.
func TestWidthsInChromium(t *testing.T) {
	const cut = `[...document.querySelectorAll(".tiles .gpu b, .tiles .gpu small, .sums dd")].filter((e) => e.scrollWidth > e.clientWidth + 1).concat([...document.querySelectorAll(".tiles .gpu")].filter((e) => e.scrollHeight > e.clientHeight)).map((e) => e.textContent).join("; ")`
	for view, w := range map[string]*pagetest.World{"map": large(200), "tiles": smallFleet()} {
		b := open(t, w)
		for _, size := range []struct{ width, height int64 }{{390, 844}, {820, 1180}, {1440, 900}, {2560, 1440}} {
			b.size(size.width, size.height)
			for _, scheme := range []string{"light", "dark"} {
				b.prefer(scheme)
				b.until(`document.querySelector("#cards").classList.contains("` + view + `") && document.querySelector("#cards").clientWidth < innerWidth`)
				b.picture(fmt.Sprintf("%s-%d-%s", view, size.width, scheme))
				if got := b.eval(`document.documentElement.scrollWidth - innerWidth`); !strings.HasPrefix(got, "-") && got != "0" {
					t.Errorf("%s, %d px: the page is %s px wider than the window", view, size.width, got)
				}
				if got := b.eval(cut); got != "" {
					t.Errorf("%s, %d px: text is cut: %s", view, size.width, got)
				}
				if got := b.eval(`document.querySelector(".node").getBoundingClientRect().bottom <= innerHeight`); got != "true" {
					t.Errorf("%s, %d px: no node is on the first screen", view, size.width)
				}
			}
			if view == "map" && size.width >= 1440 {
				if got := b.eval(`document.querySelectorAll(".node").length + " " + (document.querySelector("#cards").getBoundingClientRect().bottom <= innerHeight)`); got != "200 true" {
					t.Errorf("%d px: 200 nodes are not on one screen: %s, the last ends at %s of %d px", size.width, got, b.eval(`document.querySelector("#cards").getBoundingClientRect().bottom`), size.height)
				}
			}
		}
	}
}
