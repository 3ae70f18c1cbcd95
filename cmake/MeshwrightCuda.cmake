# Finds the CUDA toolkit. MESHWRIGHT_CUDA: AUTO takes it where it is, ON insists, OFF does not look.
# Sets MESHWRIGHT_HAVE_CUDA; folders choose their GPU sources by it, never by #ifdef in headers.
set(MESHWRIGHT_CUDA AUTO CACHE STRING "GPU parts: AUTO, ON or OFF")
set_property(CACHE MESHWRIGHT_CUDA PROPERTY STRINGS AUTO ON OFF)
set(MESHWRIGHT_HAVE_CUDA OFF)

if(NOT MESHWRIGHT_CUDA)
  message(STATUS "Meshwright: CUDA not asked for (MESHWRIGHT_CUDA=${MESHWRIGHT_CUDA})")
  return()
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  # The toolkit's installer does not put nvcc in the path.
  find_program(MESHWRIGHT_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(MESHWRIGHT_NVCC)
    set(ENV{CUDACXX} ${MESHWRIGHT_NVCC})  # what check_language looks at
  endif()
endif()
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  find_package(CUDAToolkit QUIET)
endif()
if(CMAKE_CUDA_COMPILER AND CUDAToolkit_FOUND)
  set(MESHWRIGHT_HAVE_CUDA ON)
  message(STATUS "Meshwright: CUDA toolkit ${CUDAToolkit_VERSION}, ${CMAKE_CUDA_COMPILER}")
elseif(MESHWRIGHT_CUDA STREQUAL "AUTO")
  message(STATUS "Meshwright: no usable CUDA toolkit; building everything but the GPU parts")
else()
  message(FATAL_ERROR "MESHWRIGHT_CUDA=${MESHWRIGHT_CUDA}, but there is no usable CUDA toolkit: "
    "put nvcc in PATH or set CUDACXX, or configure with MESHWRIGHT_CUDA=AUTO")
endif()
