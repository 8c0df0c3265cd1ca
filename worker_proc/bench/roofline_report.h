// What `flotilla bench roofline` prints: a table for people, JSON for scripts.
//
// Units: in the heads of the columns and the members' names. Pure but for DescribeMachine.
#pragma once

#include <span>
#include <string>

#include "boost/json/object.hpp"
#include "worker_proc/bench/roofline.h"

namespace flotilla::bench {

struct MachineInfo {
  std::string cpu;     // "AMD EPYC …"
  std::string commit;  // what this program was built from
  std::string model;   // file name
  uint32_t cores = 0;
  double load_before = 0, load_after = 0;  // one-minute averages; our own threads count in
};
// Of this machine, now; load_after is the caller's.
MachineInfo DescribeMachine(const std::string& model_path);
double LoadAverage();

std::string RooflineTable(const RooflineReport& report);
boost::json::object RooflineJson(const MachineInfo& machine,
                                 std::span<const RooflineReport> reports);

}  // namespace flotilla::bench
