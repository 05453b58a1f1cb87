// Parses a list of counters and renders series with the packages of dcgm-exporter, in whose tree it is built: bench/dcgm_peer.py.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/NVIDIA/dcgm-exporter/internal/pkg/appconfig"
	"github.com/NVIDIA/dcgm-exporter/internal/pkg/collector"
	"github.com/NVIDIA/dcgm-exporter/internal/pkg/counters"
	"github.com/NVIDIA/dcgm-exporter/internal/pkg/rendermetrics"
)


func main() {
	records, err := counters.ReadCSVFile(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	var ids []uint
	for id := uint(1001); id < 1100; id++ {
		ids = append(ids, id)
	}
	config := &appconfig.Config{CollectDCP: true, MetricGroups: []dcgm.MetricGroup{{FieldIds: ids}}}
	set, err := counters.ExtractCounters(records, config)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	var given map[string][]collector.Metric
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, counter := range append(set.DCGMCounters, set.ExporterCounters...) {
		metrics, found := given[counter.FieldName]
		if !found || counter.PromType == "label" {
			fmt.Printf("# ABSENT %s %s\n", counter.FieldName, counter.PromType)
			continue
		}
		err := rendermetrics.RenderGroup(os.Stdout, dcgm.FE_GPU, collector.MetricsByCounter{counter: metrics})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
