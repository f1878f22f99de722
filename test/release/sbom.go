package release

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/test/images"
)

// bom is a list of software in CycloneDX's JSON, version 1.6, as far as it is
// used here: https://cyclonedx.org/docs/1.6/json.
type bom struct {
	Format      string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    metadata    `json:"metadata"`
	Components  []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Name       string     `json:"name"`
	Version    string     `json:"version,omitempty"`
	PackageURL string     `json:"purl,omitempty"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// writeSBOM writes what the modules are that a binary was linked from, which it
// says itself, and which libraries are in the image with it.
func writeSBOM(name, binary, version string, libraries []images.File) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	digest, err := sum(binary)
	if err != nil {
		return err
	}
	out := bom{Format: "CycloneDX", SpecVersion: "1.6", Version: 1, Metadata: metadata{component{
		Type: "application", Name: info.Path, Version: version, PackageURL: "pkg:golang/" + info.Path + "@" + version,
		Hashes: []hash{{"SHA-256", digest}},
	}}}
	module := func(path, version string, properties ...property) {
		out.Components = append(out.Components, component{
			Type: "library", Name: path, Version: version, PackageURL: "pkg:golang/" + path + "@" + version, Properties: properties,
		})
	}
	for _, m := range info.Deps {
		if m.Replace != nil && m.Replace.Sum == "" { // ours, by its folder
			module(m.Path, version)
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		module(m.Path, m.Version, property{"go:sum", m.Sum}) // of the module's files, not of an archive
	}
	for _, library := range libraries {
		digest, err := sum(library.Source)
		if err != nil {
			return err
		}
		out.Components = append(out.Components, component{Type: "file", Name: library.Path, Hashes: []hash{{"SHA-256", digest}}})
	}
	module("std", strings.TrimPrefix(info.GoVersion, "go"))
	slices.SortFunc(out.Components, func(a, b component) int { return strings.Compare(a.Name, b.Name) })
	text, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}
