package test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// sample returns the object of a kind in a file of config/samples.
func sample(t *testing.T, file, kind string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../config/samples", file))
	if err != nil {
		t.Fatal(err)
	}
	objects := slices.DeleteFunc(documents(t, string(text)), func(object map[string]any) bool { return object["kind"] != kind })
	if len(objects) != 1 {
		t.Fatalf("%s has %d objects of the kind %s", file, len(objects), kind)
	}
	return objects[0]
}

// valuesFile writes values as a renderer passes them to Helm.
func valuesFile(t *testing.T, values any) string {
	t.Helper()
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	if err := encoder.Encode(values); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// apis are flags with APIs of a cluster, as a renderer passes them.
func apis(more ...string) (flags []string) {
	for _, api := range append([]string{"v1", "v1/Pod", "apps/v1", "apps/v1/Deployment", "admissionregistration.k8s.io/v1", "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"}, more...) {
		flags = append(flags, "--api-versions", api)
	}
	return flags
}

// rendersTheSame renders the chart with both sets of flags and fails if the texts differ.
func rendersTheSame(t *testing.T, first, second []string) string {
	t.Helper()
	text, err := render(t, chart, first...)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := render(t, chart, second...); err != nil || again != text {
		t.Errorf("the second render differs: %v", err)
	}
	return text
}

// TestArgoCDRendersTheSample renders config/samples/argocd.yaml as Argo CD does: away from the
// cluster, with the cluster's APIs and its version, in older releases without the patch.
func TestArgoCDRendersTheSample(t *testing.T) {
	source, _ := at(sample(t, "argocd.yaml", "Application"), "spec", "source").(map[string]any)
	if source["path"] != "charts/gpumem" || at(source, "helm", "releaseName") != "gpumem" {
		t.Errorf("the sample renders %v as %v", source["path"], at(source, "helm", "releaseName"))
	}
	values := valuesFile(t, at(source, "helm", "valuesObject"))
	for _, version := range []string{"1.31", "1.34", "v1.34.0", "1.35", "1.36", "v1.36.0-gke.100", "1.38", "v1.37.2+k3s1"} {
		t.Run(version, func(t *testing.T) {
			flags := append(apis(), "--kube-version", version, "--values", values, "--include-crds")
			if version == "1.31" { // the tag is the version of the API server
				flags = append(flags, "--set", "scheduler.image.tag=v1.31.9")
			}
			found := images(t, rendersTheSame(t, flags, flags))
			for container, image := range found {
				if strings.HasSuffix(image, ":") {
					t.Errorf("container %s has the image %s", container, image)
				}
			}
			if old := strings.HasPrefix(strings.TrimPrefix(version, "v"), "1.3") && version < "1.35"; old && found["kube-scheduler"] == "" {
				t.Errorf("no kube-scheduler: %v", found)
			}
		})
	}
}

// TestFluxRendersTheSample renders config/samples/flux.yaml as Flux's helm-controller does: with
// the cluster's exact version, first for an installation and then for an upgrade.
func TestFluxRendersTheSample(t *testing.T) {
	release := sample(t, "flux.yaml", "HelmRelease")
	if at(release, "spec", "chart", "spec", "chart") != "./charts/gpumem" || at(release, "spec", "releaseName") != "gpumem" {
		t.Errorf("the sample renders %v as %v", at(release, "spec", "chart", "spec", "chart"), at(release, "spec", "releaseName"))
	}
	if namespace := at(sample(t, "flux.yaml", "Namespace"), "metadata", "name"); at(release, "spec", "targetNamespace") != namespace {
		t.Errorf("the release goes to %v, and the sample makes %v", at(release, "spec", "targetNamespace"), namespace)
	}
	values := valuesFile(t, at(release, "spec", "values"))
	for _, version := range []string{"v1.34.6", "v1.35.4-eks-1a2b3c4", "v1.36.0", "v1.36.3-gke.1234000", "v1.38.1+k3s1"} {
		t.Run(version, func(t *testing.T) {
			install := append(apis(), "--kube-version", version, "--values", values)
			rendersTheSame(t, install, append(slices.Clone(install), "--is-upgrade"))
		})
	}
}
