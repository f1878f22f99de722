package main

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/test/fakenvml"
)

var update = flag.Bool("update", false, "write docs/hardware.md, and what is made of the results")

const (
	resultsDir   = "results"
	hardwarePage = "../../docs/hardware.md"
)

// sample is a result that was never measured.
func sample() Result {
	return Result{
		Date: "2000-01-02", GPU: "Some GPU 80GB", GPUs: 2, MemoryMiB: 81559, SMs: 132, Driver: "999.10.01", Linux: "6.14.0",
		Lines: []Line{
			{"mps", within, Pass, ""}, {"mps", beyond, Fail, "a | b\nc"}, {"containers", seesGPU, NotTried, "ctr is not on this machine"},
		},
		Sharing: []Series{
			{timeSlicing, []Point{{Sharers: 1, PerSecond: 100, P50: 10, P99: 12, Start: 0.2}, {Sharers: 8, PerSecond: 104, P50: 77, P99: 95, Spread: 0.01, Start: 1}}},
			{mpsLevel, []Point{{Sharers: 1, PerSecond: 99, P50: 10, P99: 12, Start: 0.3}, {Sharers: 8, PerSecond: 700, P50: 11, P99: 20, Spread: 0.02, Start: 2, Failed: 1}}},
		},
	}
}

// TestResultsAreCurrent: what is made of the JSON of results is what is committed.
func TestResultsAreCurrent(t *testing.T) {
	all, err := readResults(resultsDir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{hardwarePage: page(all)}
	for _, r := range all {
		for ending, text := range r.drawn() {
			files[filepath.Join(resultsDir, r.name()+ending)] = text
		}
	}
	for file, want := range files {
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s is not made of the results: test/gpu/run.sh -page (-want +got):\n%s", file, diff)
		}
	}
}

// What is kept is read again, with its table, its pictures and its place in the page.
func TestAResultIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), resultsDir)
	if all, err := readResults(dir); err != nil || len(all) != 0 || !strings.Contains(page(all), "Nothing yet.") {
		t.Errorf("with no results: %v, %v", all, err)
	}
	older := sample()
	older.Date = "1999-12-31"
	for _, r := range []Result{older, sample()} {
		path, err := r.write(dir)
		if want := filepath.Join(dir, "some-gpu-80gb-999.10.01-"+r.Date); err != nil || path != want {
			t.Errorf("%s, %v; want %s", path, err, want)
		}
	}
	// A part that is asked again on the same day takes the place of what it said.
	again := sample()
	again.Lines, again.Sharing, again.SMs = []Line{{"mps", beyond, Pass, ""}}, nil, 0
	if _, err := again.write(dir); err != nil {
		t.Fatal(err)
	}
	all, err := readResults(dir)
	want := sample()
	want.Lines = []Line{{"mps", beyond, Pass, ""}, want.Lines[2]}
	if diff := cmp.Diff([]Result{want, older}, all); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := sample().write(dir); err != nil {
		t.Fatal(err)
	}
	all, err = readResults(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Result{sample(), older}, all); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	text := page(all)
	for _, words := range []string{
		"| [Some GPU 80GB](../test/gpu/results/some-gpu-80gb-999.10.01-2000-01-02.md) | 999.10.01 | 2000-01-02 | 1 | 1 | 1 |\n",
		"- mps, twice the grant can not: a | b",
		"](../test/gpu/results/some-gpu-80gb-999.10.01-2000-01-02-latency.svg)",
		"2 GPUs, the first of 81559 MiB; Linux 6.14.0.",
	} {
		if !strings.Contains(text, words) {
			t.Errorf("the page has no %q:\n%s", words, text)
		}
	}
	if strings.Contains(text, "Nothing yet.") {
		t.Error("the page says that there is nothing")
	}
	table := sample().table()
	for _, words := range []string{
		`| mps | twice the grant can not | fail | a \| b c |`,
		"| mps | 8 | 700 | 7.00 | 11.00 | 20.00 | 0.02 | 2.00 | 1 |",
	} {
		if !strings.Contains(table, words) {
			t.Errorf("the table has no %q:\n%s", words, table)
		}
	}
	if err := os.Rename(filepath.Join(dir, sample().name()+".json"), filepath.Join(dir, "other.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := readResults(dir); err == nil || !strings.Contains(err.Error(), "its name must be") {
		t.Errorf("a result by another name: %v", err)
	}
}

// The pictures are XML, have each point, and larger values stand higher.
func TestPictures(t *testing.T) {
	for name, picture := range map[string]string{"throughput": sample().throughput(), "latency": sample().latency()} {
		decoder := xml.NewDecoder(strings.NewReader(picture))
		for {
			if _, err := decoder.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, picture)
			}
		}
		want := map[string]int{"throughput": 4, "latency": 8}[name]
		if got := strings.Count(picture, "<circle"); got != want {
			t.Errorf("%s has %d points, want %d", name, got, want)
		}
	}
	// 100 of 800 at the left, 104 at the right; 99 and 700 with MPS.
	for _, line := range []string{
		`points="70.0,331.2 490.0,329.7" fill="none" stroke="#4477aa" stroke-width="6"`, `points="70.0,331.6 490.0,98.8" fill="none" stroke="#ee6677" stroke-width="4"`,
		">Throughput of all programs together<", ">Some GPU 80GB, driver 999.10.01, 2000-01-02<", ">kernels/s<",
	} {
		if !strings.Contains(sample().throughput(), line) {
			t.Errorf("no line %s in\n%s", line, sample().throughput())
		}
	}
	for value, want := range map[float64]float64{0: 1, 1: 1, 2.5: 3, 3.5: 4, 401: 600, 700: 800, 0.15: 0.2, 9: 10} {
		if got := nice(value); got != want {
			t.Errorf("nice(%g) is %g, want %g", value, got, want)
		}
	}
}

// TestTheKitPacks: what is packed runs where there is neither Go nor gcc.
func TestTheKitPacks(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "kit.tar.gz")
	if out, err := exec.CommandContext(t.Context(), "./run.sh", "-pack", archive).CombinedOutput(); err != nil {
		t.Fatalf("pack: %v\n%s", err, out)
	}
	info, err := os.Stat(archive)
	if err != nil || info.Size() > 60<<20 {
		t.Errorf("%v, %v: want 60 MiB at most", info, err)
	}
	if out, err := exec.CommandContext(t.Context(), "tar", "-C", dir, "-xzf", archive).CombinedOutput(); err != nil {
		t.Fatalf("unpack: %v\n%s", err, out)
	}
	tools := filepath.Join(dir, "bin") // all that the script needs
	if err := os.Mkdir(tools, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bash", "dirname", "mktemp", "rm"} {
		path, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(path, filepath.Join(tools, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	kit := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "gpumem-kit", "run.sh"), args...)
		cmd.Env = []string{"PATH=" + tools}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := kit("-list"); err != nil || !strings.Contains(out, "containers\n  "+seesGPU+"\n") {
		t.Errorf("list: %v\n%s", err, out)
	}
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		t.Skip("there is a driver: run.sh is for that")
	}
	if out, err := kit(); err == nil || !strings.Contains(out, "no NVIDIA driver answers here") {
		t.Errorf("without a driver: %v\n%s", err, out)
	}
}

func TestWhatIsAskedFor(t *testing.T) {
	for _, args := range [][]string{{"-parts", "limits"}, {"-sharers", "2,4"}, {"-sharers", "1,x"}, {"-sharers", ""}, {"-nonsense"}} {
		if _, err := read(args, io.Discard); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}

func TestProgramsThatSayNothing(t *testing.T) {
	k := kit{probe: "/bin/true", log: testLog{t}, facts: facts{gpus: []card{{uuid: "GPU-0"}}}}
	if p := k.run(t.Context(), container{}, "alloc", "1"); p.OK || p.Error == "" {
		t.Errorf("%+v", p)
	}
}

// The simulated driver tells what the kit asks of NVML.
func TestNVMLIsAsked(t *testing.T) {
	dir := t.TempDir()
	path, err := fakenvml.Build(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	m := fakenvml.NewMachine(fakenvml.T4("a"), fakenvml.T4("b"))
	m.DriverVersion, m.GPUs[1].ComputeMode = newDriver, 3
	m.GPUs[1].Processes = []fakenvml.Process{{PID: 7, UsedMiB: 1, SMUtil: 40}, {PID: 8, UsedMiB: 1}}
	if err := fakenvml.WriteConfig(filepath.Join(dir, "gpus.json"), m); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKENVML_CONFIG", filepath.Join(dir, "gpus.json"))
	l := library{path}
	got, err := l.facts()
	want := facts{newDriver, []card{{"Tesla T4", m.GPUs[0].UUID, 15360}, {"Tesla T4", m.GPUs[1].UUID, 15360}}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(facts{}, card{})); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	settings, err := l.settings()
	if err != nil || !strings.Contains(settings, "GPU 1: compute mode 3, MIG mode not told (next: not told), clocks not told and not told MHz") {
		t.Errorf("%q, %v", settings, err)
	}
	for uuid, want := range map[string]map[int]int{m.GPUs[0].UUID: {}, m.GPUs[1].UUID: {7: 40}} {
		use, err := l.use(uuid, time.Unix(0, 0))
		if diff := cmp.Diff(want, use); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	if _, err := l.use("GPU-none", time.Now()); err == nil {
		t.Error("a GPU that is not there has samples")
	}
	if _, err := (library{"/nowhere.so"}).facts(); err == nil {
		t.Error("a library that is not there answers")
	}
	for version, protocol := range map[string]int{newDriver: 3, oldDriver: 2, "1000.1": 3, "99.1": 2, "": 2} {
		if got := (facts{version: version}).protocol(); got != protocol {
			t.Errorf("driver %q has protocol %d, want %d", version, got, protocol)
		}
	}
}

func TestShare(t *testing.T) {
	got := share([]Probe{
		{OK: true, Launches: 90, Start: 1, P50: 5, P99: 9}, {OK: true, Launches: 110, Start: 3, P50: 7, P99: 8}, {Error: "out of memory", Start: 2}, {Error: "another"},
	}, 2)
	got.Spread = float64(int(got.Spread*100)) / 100
	want := Point{Sharers: 4, PerSecond: 100, P50: 7, P99: 9, Spread: 1, Start: 3, Failed: 2, Error: "out of memory"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
