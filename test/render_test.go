package test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/gpumem/gpumem/test/helm"
)

const chart = "../charts/gpumem"

// render renders the chart without a cluster.
func render(t *testing.T, chart string, flags ...string) (string, error) {
	t.Helper()
	return helm.Template(t.Context(), chart, flags...)
}

// images returns the images of a render by the name of their container. It fails the test if
// the render is no YAML.
func images(t *testing.T, text string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for _, object := range documents(t, text) {
		spec := at(object, "spec", "template", "spec")
		if object["kind"] == "Pod" {
			spec = object["spec"]
		}
		for _, c := range slices.Concat(list(spec, "initContainers"), list(spec, "containers")) {
			found[fmt.Sprint(at(c, "name"))] = fmt.Sprint(at(c, "image"))
		}
	}
	return found
}

// appVersion returns the version of gpumem that the chart installs.
func appVersion(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var of struct {
		AppVersion string `yaml:"appVersion"`
	}
	if err := yaml.Unmarshal(text, &of); err != nil {
		t.Fatal(err)
	}
	return of.AppVersion
}

// documents returns the objects of a render.
func documents(t *testing.T, text string) (objects []map[string]any) {
	t.Helper()
	for decoder := yaml.NewDecoder(strings.NewReader(text)); ; {
		var object map[string]any
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatal(err)
		}
		if object != nil {
			objects = append(objects, object)
		}
	}
}

// TestEveryVersionRenders renders the chart for versions as renderers pass them: Argo CD often
// drops the patch, and API servers of vendors append a suffix.
func TestEveryVersionRenders(t *testing.T) {
	const bare = "registry.k8s.io/kube-scheduler:"
	plugin := "ghcr.io/gpumem/gpumem-scheduler:" + appVersion(t) + "-kube"
	needsTag := func(version string) string {
		return "The renderer passes Kubernetes " + version + " without a patch, and the image of kube-scheduler needs an exact version: " +
			"set scheduler.image.tag to the version of the cluster's API server, like " + version + ".3."
	}
	skewed := func(tag, version, want string) string {
		return "scheduler.image.tag is " + tag + ", and the cluster is " + version + ": kube-scheduler must be of Kubernetes " + want + ". Set the tag to the version of the cluster's API server."
	}
	for _, tc := range []struct {
		version string
		flags   []string
		image   string // of the container that schedules pods
		refused string
	}{
		{version: "1.35", image: plugin + "1.35"},
		{version: "v1.36", image: plugin + "1.36"},
		{version: "1.37", image: plugin + "1.37"},
		{version: "1.38", image: plugin + "1.37"},
		{version: "1.36+", image: plugin + "1.36"},
		{version: "v1.35.0", image: plugin + "1.35"},
		{version: "v1.36.0", image: plugin + "1.36"},
		{version: "v1.38.0", image: plugin + "1.37"},
		{version: "v1.36.3", image: plugin + "1.36"},
		{version: "v1.36.0-gke.100", image: plugin + "1.36"},
		{version: "v1.36.3-gke.1234000", image: plugin + "1.36"},
		{version: "v1.35.4-eks-1a2b3c4", image: plugin + "1.35"},
		{version: "v1.37.2+k3s1", image: plugin + "1.37"},
		{version: "v1.37.0+rke2r1", image: plugin + "1.37"},
		{version: "v1.37.0-rc.1", image: plugin + "1.37"},

		{version: "v1.31.0", image: bare + "v1.31.0"},
		{version: "v1.34.0", image: bare + "v1.34.0"},
		{version: "1.34.6", image: bare + "v1.34.6"},
		{version: "v1.34.0-gke.100", image: bare + "v1.34.0"},
		{version: "v1.33.1-eks-1a2b3c4", image: bare + "v1.33.1"},
		{version: "v1.32.9+k3s1", image: bare + "v1.32.9"},
		{version: "v1.39.1", image: bare + "v1.39.1"},

		{version: "1.34", refused: needsTag("v1.34")},
		{version: "v1.31", refused: needsTag("v1.31")},
		{version: "1.33", refused: needsTag("v1.33")},
		{version: "v1.39", refused: needsTag("v1.39")},
		{version: "1.36", flags: []string{"--set", "scheduler.mode=extender"}, refused: needsTag("v1.36")},
		{version: "1.34", flags: []string{"--set", "scheduler.image.tag=v1.34.2"}, image: bare + "v1.34.2"},
		{version: "1.36", flags: []string{"--set", "scheduler.mode=extender,scheduler.image.tag=v1.36.1"}, image: bare + "v1.36.1"},
		{version: "v1.39.1", flags: []string{"--set", "scheduler.image.tag=v1.38.0"}, image: bare + "v1.38.0"},
		{version: "v1.39.1", flags: []string{"--set", "scheduler.image.tag=v1.39.4"}, image: bare + "v1.39.4"},
		{version: "v1.39.1", flags: []string{"--set", "scheduler.image.tag=ours"}, image: bare + "ours"},
		{version: "v1.39.1", flags: []string{"--set", "scheduler.image.tag=v1.34.6"}, refused: skewed("v1.34.6", "v1.39.1", "1.38 or 1.39")},
		{version: "1.31", flags: []string{"--set", "scheduler.image.tag=v1.34.6"}, refused: skewed("v1.34.6", "v1.31", "1.30 or 1.31")},
		{version: "v1.34.6", flags: []string{"--set", "scheduler.image.tag=v1.35.0-rc.1"}, refused: skewed("v1.35.0-rc.1", "v1.34.6", "1.33 or 1.34")},
		{version: "1.36", flags: []string{"--set", "scheduler.image.tag=v1.34.6"}, image: plugin + "1.36"},
		{version: "1.34", flags: []string{"--set", "scheduler.mode=plugin"}, refused: "scheduler.mode is plugin, which serves Kubernetes 1.35 to 1.38: the cluster is v1.34."},
	} {
		t.Run(strings.Join(append([]string{tc.version}, tc.flags...), " "), func(t *testing.T) {
			// Argo CD passes the kinds that the API server has, Helm by itself passes few.
			for _, kinds := range [][]string{nil, {"--api-versions", "v1", "--api-versions", "v1/Pod"}} {
				text, err := render(t, chart, slices.Concat([]string{"--kube-version", tc.version}, tc.flags, kinds)...)
				if tc.refused != "" {
					if err == nil || !strings.Contains(err.Error(), tc.refused) {
						t.Errorf("%q: want %q, got %v", kinds, tc.refused, err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%q: %v", kinds, err)
				}
				found := images(t, text)
				if got := found["gpumem-scheduler"] + found["kube-scheduler"]; got != tc.image {
					t.Errorf("%q: the scheduler's image is %q, want %q", kinds, got, tc.image)
				}
			}
		})
	}
}

// TestKubeSchedulersVersionIsNotNeededElsewhere renders modes without an image of kube-scheduler.
func TestKubeSchedulersVersionIsNotNeededElsewhere(t *testing.T) {
	for _, version := range []string{"1.31", "v1.34", "1.39"} {
		if _, err := render(t, chart, "--kube-version", version, "--set", "scheduler.mode=existing,extender.tls.source=cert-manager"); err != nil {
			t.Errorf("%s: %v", version, err)
		}
	}
}

// TestOneRegistryForAllImages renders each mode with image.registry.
func TestOneRegistryForAllImages(t *testing.T) {
	const registry = "registry.example.com:5000/mirror"
	version := appVersion(t)
	for name, tc := range map[string]struct {
		flags []string
		want  map[string]string // changes to the images that all modes have
	}{
		"plugin":   {[]string{"--kube-version", "v1.36.3"}, map[string]string{"gpumem-scheduler": registry + "/gpumem-scheduler:" + version + "-kube1.36"}},
		"extender": {[]string{"--kube-version", "v1.34.6"}, map[string]string{"gpumem-extender": registry + "/gpumem-extender:" + version, "kube-scheduler": registry + "/kube-scheduler:v1.34.6"}},
		"existing": {[]string{"--kube-version", "v1.34.6", "--set", "scheduler.mode=existing,extender.tls.source=cert-manager"}, map[string]string{"gpumem-extender": registry + "/gpumem-extender:" + version}},
		"repositories of one image": {
			[]string{"--kube-version", "v1.36.3", "--set", "devicePlugin.image.repository=other.example.com/plugin,scheduler.plugin.image.repository=ours/gpumem-scheduler,scheduler.plugin.image.tag=sha256:01"},
			map[string]string{"gpumem-scheduler": "ours/gpumem-scheduler@sha256:01", "gpumem-device-plugin": "other.example.com/plugin:" + version, "gpumem-mps": "other.example.com/plugin:" + version},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := map[string]string{
				"gpumem-device-plugin": registry + "/gpumem-device-plugin:" + version,
				"gpumem-mps":           registry + "/gpumem-device-plugin:" + version,
				"cleanup":              registry + "/gpumem-extender:" + version,
				"sample":               registry + "/gpumem-sample:" + version,
			}
			maps.Copy(want, tc.want)
			text, err := render(t, chart, append(tc.flags, "--set", "mps.enabled=true,image.registry="+registry)...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, images(t, text)); diff != "" {
				t.Errorf("images by container (-want +got):\n%s", diff)
			}
		})
	}
	for _, wrong := range []string{"https://registry.example.com", "registry.example.com/", "a b"} {
		if _, err := render(t, chart, "--kube-version", "v1.36.3", "--set", "image.registry="+wrong); err == nil || !strings.Contains(err.Error(), "/image/registry") {
			t.Errorf("image.registry %q: %v", wrong, err)
		}
	}
}
