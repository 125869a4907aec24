# Configures the project, in a path with a space, with optional packages that are broken or too old: each is left out
# with a message that says why, and part of the project builds. If the feature is ON instead, the reason is an error.
#   cmake -DSOURCE=… -DFOLDER=… -DGENERATOR=… -P optional_packages.cmake
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})
file(CREATE_LINK ${SOURCE} "${FOLDER}/check out" SYMBOLIC)

# Like Debian's libdnnl-dev without OpenCL.
file(WRITE ${FOLDER}/dnnl/dnnl-config.cmake "message(FATAL_ERROR \"Could NOT find OpenCL (missing: OpenCL_LIBRARY)\")\n")
# A toolkit whose nvcc does not run, and one that is too old.
foreach(version 11.8 12.4)
  set(toolkit ${FOLDER}/cuda-${version})
  file(WRITE ${toolkit}/include/cuda_runtime.h "")
  file(WRITE ${toolkit}/lib64/libcudart.so "")
  file(WRITE ${toolkit}/bin/nvcc "#!/bin/sh\n[ \"$1\" != -v ] && [ \"$1\" != --version ] && exit 1\n\
echo 'Cuda compilation tools, release ${version}, V${version}.131' >&2\necho 'Cuda compilation tools, release ${version}, V${version}.131'\n\
echo '#$ TOP=${toolkit}' >&2\n")
  file(CHMOD ${toolkit}/bin/nvcc PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endforeach()
# An MPI whose compiler does not compile.
file(WRITE ${FOLDER}/mpicxx "#!/bin/sh\necho 'mpicxx: broken' >&2\nexit 1\n")
file(CHMOD ${FOLDER}/mpicxx PERMISSIONS OWNER_READ OWNER_EXECUTE)

function(configure name expected_code)  # [OPTION…] TEXT…: in what is printed
  set(options ${ARGN})
  list(FILTER options INCLUDE REGEX "^-D")
  set(texts ${ARGN})
  list(FILTER texts EXCLUDE REGEX "^-D")
  execute_process(COMMAND ${CMAKE_COMMAND} -S "${FOLDER}/check out" -B "${FOLDER}/${name}" -G ${GENERATOR}
                          -DCMAKE_CXX_COMPILER_WORKS=ON -DTRIVET_CPU_ISAS=portable ${options}
                  RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if((code AND NOT expected_code) OR (expected_code AND NOT code))
    message(FATAL_ERROR "${name}: exit code ${code}\n${output}")
  endif()
  foreach(text ${texts})
    string(FIND "${output}" "${text}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "${name}: nothing says \"${text}\":\n${output}")
    endif()
  endforeach()
endfunction()

configure("all broken" 0 "-Ddnnl_DIR=${FOLDER}/dnnl" "-DCUDAToolkit_ROOT=${FOLDER}/cuda-12.4"
          "-DMPI_CXX_COMPILER=${FOLDER}/mpicxx" -DMPI_CXX_SKIP_MPICXX=ON -DMPI_ASSUME_NO_BUILTIN_MPI=ON
          "MPI is left out: no MPI was found" "CUDA is left out: ${FOLDER}/cuda-12.4/bin/nvcc does not work"
          "NCCL is left out" "NVTX is left out"
          "matmul_bench does without oneDNN: Could NOT find OpenCL")
execute_process(COMMAND ${CMAKE_COMMAND} --build "${FOLDER}/all broken" --target
                        CMakeFiles/trivet_base.dir/base/stop_signal.cc.o
                RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(code)
  message(FATAL_ERROR "a part of it does not build in a path with a space:\n${output}")
endif()
configure("needed" 1 -DTRIVET_MPI=OFF -DTRIVET_CUDA=ON "-DCUDAToolkit_ROOT=${FOLDER}/cuda-11.8"
          "MPI is left out: TRIVET_MPI is OFF" "TRIVET_CUDA is ON, but found CUDA 11.8")
