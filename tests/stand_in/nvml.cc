// A stand-in for NVML: a library with the same name as the driver's, which tests load before the program asks for NVML.
// Tests can set the values that it reports for its one GPU, 0000:01:00.0.
#include <cstring>

extern "C" {

// Values that the tests set. Negative: this GPU does not report the value.
long long nvml_energy_of_a_look = 500;  // millijoules
long long nvml_reasons = 0;
long long nvml_ecc_errors = -1;

int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  *device = &nvml_reasons;
  return std::strcmp(bus_id, "0000:01:00.0") == 0 ? 0 : 6;  // not found
}
int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* mj) {
  static unsigned long long energy = 1'000'000;
  *mj = energy += static_cast<unsigned long long>(nvml_energy_of_a_look);
  return 0;
}
int nvmlDeviceGetClockInfo(void*, int type, unsigned* mhz) {
  *mhz = type == 1 ? 1755 : 0;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void*, int type, int counter, unsigned long long* errors) {
  *errors = type == 1 && counter == 0 ? static_cast<unsigned long long>(nvml_ecc_errors) : 0;
  return nvml_ecc_errors < 0 ? 3 : 0;  // not supported
}
int nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned* lanes) {
  *lanes = 8;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = static_cast<unsigned long long>(nvml_reasons);
  return 0;
}

}  // extern "C"
